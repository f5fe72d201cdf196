"""Times bound and gradient of the Python reference, one line at a time on demand.

Started by the bench `against_reference`: python3 compare_with_reference.py REFERENCE_FOLDER CASE.json
It reads the case and prints bound and gradient; then for every line on stdin, a number, it evaluates so often and prints the
seconds of each.
"""
import json, sys, time

sys.path.insert(0, sys.argv[1])
import numpy as np
import sgpref

with open(sys.argv[2]) as file:
    case = json.load(file)
kernel = sgpref.Kernel("matern52", True)
theta = np.log(np.array([case["constant"], case["variance"], case["lengthscale"]]))
noise, jitter = case["noise"], case["jitter"]
array = lambda name: np.array(case[name])
old_inducing = array("old_places")
empty = sgpref.State.empty(2)
old = sgpref.posterior(kernel, theta, noise, old_inducing, array("old_targets"), old_inducing, empty, jitter)
places, targets = array("places"), array("targets")
inducing = np.vstack([old_inducing, places[:case["additional"]]])
lam_eta = old.lam_eta()


def evaluate():
    return sgpref.elbo_grad(kernel, theta, noise, places, targets, inducing, old, jitter, True, lam_eta)


value, gradient = evaluate()
print(json.dumps(dict(bound=float(value), gradient=[float(entry) for entry in gradient])), flush=True)
for line in sys.stdin:
    seconds = []
    for _ in range(int(line)):
        start = time.perf_counter()
        evaluate()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds), flush=True)
