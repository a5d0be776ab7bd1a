"""From wherever a repository comes from to one git tree, whose hash git itself computed."""
