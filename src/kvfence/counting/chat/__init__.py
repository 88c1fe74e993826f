"""From a conversation to the text that an engine tokenises, or to the reason why that is not known here.

Followed are the plain ways: texts of a system, a user, an assistant and of tools, tools and calls of tools, variables
for the template. Everything else is said to be uncountable, and goes to the engine's own endpoint or to a policy.
"""

from kvfence.counting.chat.common import Rendered, Renderer
from kvfence.counting.chat.opening import open_renderer, render
from kvfence.counting.chat.settings import Settings

__all__ = ["Rendered", "Renderer", "Settings", "open_renderer", "render"]
