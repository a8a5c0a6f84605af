"""The same work by every peer (`work.py`), one file a peer, and the race between them (`race.py`)."""
