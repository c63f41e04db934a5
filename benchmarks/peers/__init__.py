"""Other people's tools on the same questions, side by side with ours."""
