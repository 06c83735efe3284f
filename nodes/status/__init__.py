"""The status node: what is patched, why or why not, and how often each kernel ran."""
