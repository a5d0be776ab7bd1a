"""The console's protocol, contract 5: frames between workers and servers, and what goes in them.

`console_pb2` and `relay_pb2` are made from `contracts/proto/` by `contracts/proto/generate.py`.
"""
