"""Runs the real RAGRails server; started by the interpreter of the environment that ``make e2e`` fills.

Nothing of it is replaced but Voyage's address: the client that it calls Voyage with offers no setting for that.
"""

import os

import voyageai._base
from ragrails.interfaces.server.app import main

if __name__ == "__main__":
    voyageai._base.get_default_base_url = lambda key: os.environ["VOYAGE_ADDRESS"]
    main()
