"""Guards inside SGLang's prefill and decode workers: `sglang.srt.plugins` calls `register` in every process.

SGLang's loader logs what a plugin raises and goes on without it. A guard that is missing without anyone
noticing is worse than none, so everything that goes wrong here ends the process: the loader lets
`SystemExit` through. Nothing is imported before that net is spread.
"""


def register() -> None:
    """Check and apply the guards in this process.

    Raises:
        SystemExit: a setting is wrong, the release is unknown, or a guard could not be applied.
    """
    try:
        from kvfence.plugin.sglang.arm import arm  # noqa: PLC0415 - under the net, see above

        arm()
    except Exception as error:
        message = f"kvfence: this SGLang does not start without its guards: {error}"
        raise SystemExit(message) from error
