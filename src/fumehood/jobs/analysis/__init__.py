"""Analysis of code without a model: tree-sitter for what is there, static analysers and rules for what may be wrong.

What reads the code of others runs in a child process (`child`); what makes an answer of its findings (`local`) never
parses any. `constraints` and `merge` hold for the answers of all providers.
"""
