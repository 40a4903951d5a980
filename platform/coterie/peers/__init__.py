"""Exchange between devices: the graph, the choice of points to send, the cost.

Axes: n candidates, m points of the receiver's reserve, d features, k clusters.
"""
