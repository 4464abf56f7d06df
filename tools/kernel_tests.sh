# Of tools/sanitize and tools/portable, which source it in the folder of the repository: one build of the kernels, and the tests that run
# them.
KERNEL_TESTS="test/test_agent_kernels.py test/test_drivable.py test/test_geometry.py test/test_golden_scores.py
  test/test_kinematics.py test/test_metrics.py test/test_metrics_kernels.py test/test_planning_kernels.py
  test/test_scorer.py test/test_simulate.py"

# build_kernels FOLDER [OPTIONS OF CMAKE]: warnings are errors; the end of the output only where it fails
build_kernels() {
  build=$1
  shift
  mkdir -p "$build"
  if ! { cmake -S src -B "$build" -DPython_EXECUTABLE="$PYTHON" -DREFLECTDRIVE_WERROR=ON "$@" \
    && cmake --build "$build" --parallel "$(nproc)"; } > "$build/build.txt" 2>&1; then
    tail -n 40 "$build/build.txt" >&2
    exit 1
  fi
}

# are_first FOLDER: whether Python imports the kernels of this folder
are_first() {
  where='import importlib.util; print(importlib.util.find_spec("reflectdrive_kernels").origin)'
  case $(PYTHONPATH="$PYTHONPATH" "$PYTHON" -c "$where") in "$1"/*) ;; *) echo "another build of the kernels is first" >&2; exit 1 ;; esac
}
