"""How tables of ours came to be what they are: a line of revisions for each part.

A change of a table is a new file here, named after its part and its number, and the new number in
`schema.py`. What is released is never changed. A test compares the outcome with the tables that the
code declares.
"""
