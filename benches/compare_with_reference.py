"""Times bound and gradient of the Python reference, one line at a time on demand.

Started by the bench `against_reference`: python3 compare_with_reference.py REFERENCE_FOLDER CASE.json
It reads the case, then for every line on stdin evaluates once and prints the seconds, and at the end of the input the bound.
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
for _ in sys.stdin:
    start = time.perf_counter()
    evaluate()
    print(time.perf_counter() - start, flush=True)
