"""All that an adapter author imports."""
