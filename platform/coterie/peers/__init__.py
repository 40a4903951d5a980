"""Exchange between devices: the graph, the points to send, and the cost.

Axes: n candidates, m points of the receiver's reserve, d features, k clusters.
"""
