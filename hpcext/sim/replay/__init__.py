"""The replay of a scenario through the engine on a virtual clock: physics, events, a recorder."""
