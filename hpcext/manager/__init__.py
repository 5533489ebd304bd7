"""All that runs while jobs run: one driver, its journal, its spool, and the pilot made of them."""
