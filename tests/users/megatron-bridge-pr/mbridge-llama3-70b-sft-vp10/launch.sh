python scripts/performance/setup_experiment.py -m llama3 -mr llama3_70b --task sft -ng 32 -gn 8 -g h100 -c fp8_cs -tp 4 -pp 4 -vp 10 -mb 1 -gb 32
