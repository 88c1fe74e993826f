"""Chat templates in the manner of models that many serve, written for these tests."""

from __future__ import annotations

from typing import Final

SPECIALS: Final = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML: Final = """
{%- for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' %}
        {{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""

LLAMA: Final = """
{%- set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- set content = '<|start|>' + message['role'] + '<|end|>\n\n' + message['content'] | trim + '<|eot|>' %}
    {%- if loop.index0 == 0 %}
        {%- set content = bos_token + content %}
    {%- endif %}
    {{- content }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}
"""

# The first system message moves into the first user's.
LLAMA_2: Final = """
{%- if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}{% set system = messages[0]['content'] %}
{%- else %}
    {%- set rest = messages %}{% set system = false %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- if loop.index0 == 0 and system is string %}
        {%- set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}
    {%- else %}
        {%- set content = message['content'] %}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""

QWEN: Final = """
{%- if tools %}
    {{- '<|im_start|>system\n# Tools\n' }}
    {%- for tool in tools %}{{ "\n" }}{{ tool | tojson }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' and message.content is string
           and not (message.content.startswith('<reply>') and message.content.endswith('</reply>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}
            {{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for call in message.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\n<reply>\n' + content + '\n</reply>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}
{%- endif %}
"""

DEEPSEEK: Final = """
{%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- if not thinking is defined %}{% set thinking = false %}{% endif %}
{%- set ns = namespace(system='', first=true, last_user=false, in_tool=false) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- if ns.first %}
            {%- set ns.system = ns.system + message['content'] %}{% set ns.first = false %}
        {%- else %}
            {%- set ns.system = ns.system + '\n\n' + message['content'] %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}{{ ns.system }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {%- set ns.last_user = true %}{{ '<|User|>' + message['content'] }}
    {%- endif %}
    {%- if message['role'] == 'assistant' and message['tool_calls'] is defined and message['tool_calls'] is not none %}
        {%- for call in message['tool_calls'] %}{{ call['function']['name'] }}{% endfor %}
    {%- endif %}
    {%- if message['role'] == 'assistant'
           and (message['tool_calls'] is not defined or message['tool_calls'] is none) %}
        {%- if ns.last_user %}{{ '<|Assistant|>' }}{% if thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}
        {%- endif %}
        {%- set ns.last_user = false %}
        {%- set content = message['content'] %}
        {%- if '</think>' in content %}{% set content = content.split('</think>', 1)[1] %}{% endif %}
        {{- content + eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt and ns.last_user %}{{ '<|Assistant|></think>' }}{% endif %}
"""

MACROS: Final = """
{%- macro turn(role, text, end='<end>') %}<{{ role }}>{{ text | trim }}{{ end }}{% endmacro %}
{%- for m in messages if m.content %}{{ turn(m.role, m['content']) }}{% endfor %}
{%- set tail %}<{{ 'assistant' }}>{% endset %}
{{- tail if add_generation_prompt else '' }}
"""

REAL: Final = {
    "chatml": CHATML,
    "llama": LLAMA,
    "llama-2": LLAMA_2,
    "qwen": QWEN,
    "deepseek": DEEPSEEK,
    "macros": MACROS,
}
