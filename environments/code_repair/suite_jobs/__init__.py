"""Code for inside the sandbox; imports nothing of ours from outside this folder."""
