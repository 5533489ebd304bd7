"""The same engine on a virtual clock: physics is simulated, decisions are not."""
