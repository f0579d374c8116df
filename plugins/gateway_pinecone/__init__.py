"""Engine kind ``pinecone``: one namespace of a Pinecone index, through the vendor's async client. See README.md."""
