"""Runs in the sandbox: draws what clean.py left as plot.png, and prints what the plot shows as JSON."""

# mypy: disable-error-code="import-not-found"
# (matplotlib is in the image, and need not be here)

import json
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

days = json.loads(Path("clean.json").read_text(encoding="utf-8"))
figure, axes = plt.subplots(figsize=(8, 4.5), dpi=100)
found = {}
for station in sorted({day["station"] for day in days}):
    warmth = np.array([day["celsius"] for day in days if day["station"] == station])
    rides = np.array([day["rides"] for day in days if day["station"] == station])
    slope, start = np.polyfit(warmth, rides, 1)
    found[station] = {"mean": round(float(rides.mean()), 1), "per degree": round(float(slope), 1)}
    (line,) = axes.plot(warmth, rides, "o", markersize=3, label=f"{station}: {slope:+.1f} rides per degree")
    axes.plot(warmth, slope * warmth + start, color=line.get_color())
axes.set(title="Warm days, busy stations", xlabel="°C", ylabel="rides a day")
axes.legend()
figure.tight_layout()
figure.savefig("plot.png")
print(json.dumps(found))
