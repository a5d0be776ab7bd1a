"""Runs in the sandbox: reads rides.csv, leaves what can be counted in clean.json, and prints what was there."""

import csv
import json
from pathlib import Path

rows = list(csv.DictReader(Path("rides.csv").read_text(encoding="utf-8").splitlines()))
whole = [row for row in rows if all(row.values())]
days = [
    {"date": row["date"], "station": row["station"], "rides": int(row["rides"]), "celsius": float(row["celsius"])}
    for row in whole
]
Path("clean.json").write_text(json.dumps(days), encoding="utf-8")
print(json.dumps({"rows": len(rows), "left out": len(rows) - len(whole)}))
