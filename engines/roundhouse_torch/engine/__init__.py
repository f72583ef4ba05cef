"""The engine process: a loop of plan → compute → sample → report."""
