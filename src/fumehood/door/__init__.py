"""What all HTTP doors share: who comes in, how much they may say, how an error is told, how a door is served.

A door is a place where strangers knock. The node has one, the server has one with two kinds of keys, and each is as
strong as the weakest of them: so the parts that keep strangers out are written once, here, and know nothing of what
lies behind.
"""
