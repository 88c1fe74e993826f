"""What the guards of prefill have counted, by what it says of itself."""

from __future__ import annotations

import json

from acceptance.scenarios.stage import Seen, Stage


async def batches(stage: Stage) -> Seen:
    """Ask prefill how often its transfer calls were cut into smaller ones. The word is `split`, or `whole`."""
    _, content = await stage.client.get("prefill", "/server_info")
    try:
        counts = json.loads(content)["internal_states"][0]["kvfence"]["counts"]
    except (ValueError, LookupError, TypeError):
        return Seen("no guards", ("prefill's /server_info tells of none",))
    told = f"{counts['batches_split']} calls were split, {counts['batches_cut']} transfers ended between two of them"
    return Seen("split" if counts["batches_split"] else "whole", (told,))
