# tensorboard_in_python.py FOLDER: prints what TensorBoard reads in a folder, as JSON: {tag: [[step, value], ...]}. --probe: exits with 77 if
# its package is missing.
import json
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(77)
if sys.argv[1] == "--probe":
    sys.exit(0)
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
