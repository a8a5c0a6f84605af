"""How skewed is my federation? Six numbers, from nothing but counts.

Run it: python examples/measure_own_federation.py
"""

import feddiverse

# One table a client: rows are classes, columns an attribute that should not matter (scanner, season, skin tone …).
hospitals = {
    "north": [[90, 10], [10, 90]],  # the attribute predicts the class here: a spurious correlation
    "south": [[80, 85], [12, 9]],  # few of the second class
    "coast": [[70, 3], [65, 4]],  # nearly always the first attribute
    "hills": [[20, 20], [20, 20]],  # balanced
}

skew = feddiverse.measure(list(hospitals.values()), names=list(hospitals))
print(f"pooled data:      CI {skew.gci:.3f}  AI {skew.gai:.3f}  SC {skew.gsc:.3f}")
print(f"mean of clients:  CI {skew.cci:.3f}  AI {skew.cai:.3f}  SC {skew.csc:.3f}")
for name, (ci, ai, sc) in zip(hospitals, skew.clients, strict=True):
    worst = max((ci, "class imbalance"), (ai, "attribute imbalance"), (sc, "spurious correlation"))
    print(f"{name}: CI {ci:.3f}  AI {ai:.3f}  SC {sc:.3f}  mostly {worst[1] if worst[0] > 0.05 else 'balanced'}")
