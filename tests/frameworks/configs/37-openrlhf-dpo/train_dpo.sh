deepspeed --module openrlhf.cli.train_dpo \
   --save_path ./checkpoint/llama3-8b-dpo \
   --save_steps -1 --logging_steps 1 --eval_steps -1 \
   --train_batch_size 256 --micro_train_batch_size 1 \
   --pretrain OpenRLHF/Llama-3-8b-sft-mixture \
   --bf16 --max_epochs 1 --max_len 4096 --zero_stage 2 \
   --learning_rate 5e-7 --beta 0.1 \
   --dataset OpenRLHF/preference_dataset_mixture2_and_safe_pku \
   --apply_chat_template --chosen_key chosen --rejected_key rejected \
   --attn_implementation flash_attention_2
