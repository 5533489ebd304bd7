"""Views: readings of a pilot or a harvester from its journal, and documents made of them."""
