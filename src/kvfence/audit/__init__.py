"""Rules that judge a deployment from facts alone, and may say that they do not know."""
