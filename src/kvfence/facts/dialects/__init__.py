"""One dialect an engine: how its logs, arguments and endpoints say what they say."""
