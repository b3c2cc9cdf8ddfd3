//! The programs and what is true of each.

use super::{Fault, Program, Who};

/// Faults first.
pub const PROGRAMS: &[Program] = &[
    // Tensors that are kept.
    Program { is_quick: true, ..fault("retained_loss", "leak", Who::Rank(1), 2) }
        .cured_by(&[".item()", ".detach()"]),
    fault("retained_activations", "leak", Who::Rank(0), 4).cured_by(&["list", ".cpu()"]),
    fault("hook_keeps_tensors", "leak", Who::All, 2).cured_by(&["hook"]),
    fault("growing_cache", "leak", Who::All, 2).cured_by(&["cache", "bound", "lru"]),
    fault("leak_in_eval", "leak", Who::All, 2).cured_by(&["list", "clear"]),
    fault("every_tenth_step", "leak", Who::Rank(0), 2).cured_by(&["list", ".item()"]),
    fault("leak_on_all_ranks", "leak", Who::All, 4).cured_by(&["list", ".item()"]),
    fault("one_of_eight", "leak", Who::Rank(5), 8).cured_by(&["list"]),
    fault("metric_keeps_graph", "leak", Who::All, 2).cured_by(&[".detach()", ".item()"]),
    fault("list_of_outputs", "leak", Who::All, 2).cured_by(&["list"]),
    fault("retain_graph", "leak", Who::All, 2).cured_by(&["retain_graph", ".detach()", ".item()"]),
    fault("ema_copies", "leak", Who::Rank(0), 2).cured_by(&["dict", "copies"]),
    fault("exception_keeps_frames", "leak", Who::Rank(1), 2).cured_by(&["exception", "traceback"]),
    fault("many_small_tensors", "leak", Who::All, 2).cured_by(&["list", ".item()"]),
    Program {
        script: "many_small_tensors",
        arguments: &["--on-rank-0"],
        ..fault("small_tensors_rank_0", "leak", Who::Rank(0), 2)
    }
    .cured_by(&["list", ".item()"]),
    fault("reference_cycles", "reference_cycles", Who::All, 2).cured_by(&["cycle"]),
    fault("ctx_keeps_output", "leak", Who::All, 2).cured_by(&["save_for_backward"]),
    Program {
        script: "bounded_log",
        arguments: &["--unbounded"],
        ..fault("unbounded_log", "leak", Who::Rank(0), 4)
    }
    .cured_by(&["list", "deque", "maxlen"]),
    fault("accumulation_logs", "leak", Who::All, 2).cured_by(&[".detach()", ".item()"]),
    fault("every_fortieth_step", "leak", Who::All, 2).cured_by(&["list"]),
    fault("growing_cat", "leak", Who::All, 2).cured_by(&["torch.cat", "bound", "limit"]),
    Program {
        // Where the old and larger blocks leave no segments behind.
        script: "growing_cat",
        environment: &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
        ..fault("growing_cat_expandable", "leak", Who::All, 2)
    }
    .cured_by(&["torch.cat", "bound", "limit"]),
    Program {
        script: "rollouts",
        arguments: &["--keep"],
        ..fault("rollouts_kept", "leak", Who::All, 2)
    }
    .cured_by(&["list"]),
    Program {
        script: "expert_parallel",
        arguments: &["--keep"],
        ..fault("expert_keeps_tokens", "leak", Who::Rank(2), 4)
    }
    .cured_by(&["list"]),
    Program {
        script: "pipeline_stages",
        arguments: &["--keep"],
        ..fault("stage_keeps_sent", "leak", Who::Rank(1), 4)
    }
    .cured_by(&["list"]),
    // Tensors that are kept on the devices of others.
    Program { device: "1G", ..fault("objects_elsewhere", "leak", Who::Rank(0), 4) }
        .cured_by(&[".cpu()", "map_location"]),
    Program { device: "1G", fails: true, ..fault("all_on_gpu0", "out_of_memory", Who::Rank(0), 4) }
        .cured_by(&["map_location"]),
    // Tensors that are kept in the loop of a framework.
    Program {
        script: "lightning_validation",
        arguments: &["--keep"],
        ..fault("lightning_keeps_outputs", "leak", Who::All, 2)
    }
    .cured_by(&["list", "clear()"]),
    Program {
        script: "trainer_logits",
        arguments: &["--keep"],
        ..fault("trainer_keeps_logits", "leak", Who::Rank(0), 2)
    }
    .cured_by(&["list", ".item()"]),
    Program {
        script: "accelerate_gather",
        arguments: &["--keep"],
        ..fault("accelerate_keeps_gathered", "leak", Who::All, 2)
    }
    .cured_by(&["list", "clear()"]),
    Program {
        script: "torchmetrics_embeddings",
        arguments: &["--no-reset"],
        ..fault("torchmetrics_without_reset", "leak", Who::All, 2)
    }
    .cured_by(&["reset"]),
    Program {
        script: "deepspeed_zero",
        arguments: &["--keep"],
        ..fault("deepspeed_keeps_losses", "leak", Who::All, 2)
    }
    .cured_by(&["list", ".item()"]),
    // Tensors that are kept where nothing is trained.
    // Too short to page: growth that begins with the process has to last.
    Program {
        has_steps: false,
        is_quick: true,
        device: "2G",
        ..fault("kept_answers", "leak", Who::All, 1)
    }
    .cured_by(&["list"]),
    Program { has_steps: false, ..fault("adapters_pile_up", "leak", Who::All, 2) }
        .cured_by(&["delete", "unload", "dict"]),
    Program {
        has_steps: false,
        fault: Some(Fault { must_page: true, ..of("leak", Who::All) }),
        ..benign("conversations", 1)
    }
    .cured_by(&["past_key_values", "evict", "dict"]),
    Program { has_steps: false, ..fault("reward_server", "leak", Who::All, 2) }.cured_by(&[
        ".detach()",
        "no_grad",
        "inference_mode",
        ".item()",
    ]),
    // Tensors that are kept by rare events, in pools, on second devices, in cycles.
    fault("async_saves", "leak", Who::All, 2).cured_by(&["drop", "list"]),
    Program {
        script: "rollout_pool",
        arguments: &["--keep"],
        ..fault("rollout_pool_kept", "leak", Who::All, 2)
    }
    .cured_by(&["list", "drop"]),
    Program {
        script: "two_devices",
        arguments: &["--keep"],
        devices: 2,
        ..fault("second_device_keeps", "leak", Who::Rank(1), 2)
    }
    .cured_by(&["list", ".cpu()"]),
    fault("retry_cycles", "reference_cycles", Who::All, 2).cured_by(&["cycle"]),
    // What the allocator holds.
    Program { is_quick: true, ..lineless("fragmentation", "fragmentation", Who::All, 2) }
        .cured_by(&["expandable_segments"]),
    Program {
        // Without it, PyTorch does not say which frees it puts off.
        options: &["--detail"],
        environment: &[("FAKECUDA_COPY_MIB_S", "10")],
        ..fault("deferred_frees", "deferred_frees", Who::All, 2)
    }
    .cured_by(&["wait_stream", "synchronize", "wait for"]),
    Program {
        // Nor in which pool a block is.
        options: &["--detail"],
        ..fault("graph_per_shape", "compile_pools", Who::All, 1)
    }
    .cured_by(&["pad", "dynamic"]),
    Program { options: &["--detail"], ..fault("dead_graphs", "compile_pools", Who::All, 2) }
        .cured_by(&["drop"]),
    lineless("cache_thrash", "cache_thrash", Who::All, 2).cured_by(&["empty_cache"]),
    Program { device: "1G", ..lineless("imbalance", "imbalance", Who::Rank(2), 4) }
        .cured_by(&["balance", "shard", "batch"]),
    Program { device: "1G", ..lineless("long_documents", "imbalance", Who::Rank(1), 4) }
        .cured_by(&["balance", "length", "bucket"]),
    // What PyTorch does not know of.
    fault("raw_cuda_malloc", "non_torch", Who::Rank(0), 2).cured_by(&["cudaFree"]),
    Program {
        environment: &[("FAKECUDA_NCCL", "1")],
        ..fault("process_groups", "non_torch", Who::All, 2)
    }
    .cured_by(&["destroy_process_group"]),
    fault("eval_workspaces", "non_torch", Who::Rank(1), 2).cured_by(&["cudaFree"]),
    Program {
        environment: &[("FAKECUDA_NCCL", "1")],
        ..fault("weight_sync_groups", "non_torch", Who::All, 2)
    }
    .cured_by(&["destroy_process_group"]),
    lineless("evaluator_process", "non_torch", Who::Rank(1), 2).cured_by(&["process"]),
    fault("pinned_growth", "host", Who::Rank(1), 2).cured_by(&["reuse", "queue"]),
    lineless("host_growth", "host", Who::Rank(1), 2).cured_by(&["list"]),
    sampled("worker_growth", "host", Who::All, 1).cured_by(&["cache", "bound", "limit"]),
    sampled("worker_samples", "host", Who::All, 1).cured_by(&["cache", "maxsize"]),
    // Ranks that wait or are gone.
    Program {
        environment: &[("FAKECUDA_NCCL", "1")],
        ..lineless("data_wait", "desynchronised", Who::Rank(1), 3)
    }
    .cured_by(&["stack"]),
    Program {
        environment: &[("FAKECUDA_NCCL", "1")],
        fails: true,
        ..lineless("skipped_collective", "desynchronised", Who::Rank(2), 3)
    }
    .cured_by(&["collective"]),
    Program { fails: true, ..lineless("killed_rank", "died", Who::Rank(1), 3) },
    Program { fails: true, ..lineless("bad_sample", "died", Who::Rank(2), 4) }
        .cured_by(&["output", "traceback"]),
    // Nothing is wrong.
    Program { is_quick: true, ..benign("variable_lengths", 2) },
    benign("length_curriculum", 2),
    Program { is_quick: true, ..benign("eval_phases", 2) },
    Program { is_quick: true, ..benign("checkpoint_saves", 2) },
    benign("gradient_accumulation", 2),
    benign("ema", 2),
    benign("lora_unfreeze", 2),
    benign("several_optimizers", 2),
    benign("fsdp_prefetch", 1),
    benign("activation_checkpointing", 2),
    benign("warm_up", 2),
    benign("cache_saturates", 2),
    benign("gc_sawtooth", 2),
    Program {
        script: "fragmentation",
        arguments: &["--expandable"],
        ..benign("expandable_segments", 2)
    },
    benign("workers_respawn", 1),
    benign("metric_buffer", 2),
    benign("moe_routing", 4),
    benign("colocated_engine", 2),
    benign("rollout_pool", 2),
    Program { devices: 2, ..benign("two_devices", 2) },
    benign("bounded_log", 4),
    benign("smoothed_values", 2),
    Program {
        script: "accumulation_logs",
        arguments: &["--detach"],
        ..benign("accumulation_detached", 2)
    },
    benign("rollouts", 2),
    benign("expert_parallel", 4),
    benign("pipeline_stages", 4),
    benign("stream_workspaces", 2),
    benign("ram_cache_epoch", 2),
    Program {
        script: "worker_samples",
        arguments: &["--bounded"],
        ..benign("worker_samples_bounded", 1)
    },
    // Nothing is wrong in the loop of a framework.
    benign("lightning_validation", 2),
    benign("trainer_logits", 2),
    benign("accelerate_gather", 2),
    benign("torchmetrics_embeddings", 2),
    benign("deepspeed_zero", 2),
    // Nor where nothing is trained.
    Program { has_steps: false, ..benign("paged_pool", 1) },
    Program { has_steps: false, ..benign("prefix_cache", 2) },
    Program { has_steps: false, ..benign("adapter_server", 2) },
];

/// A fault of one kind, whose line ought to be named.
const fn of(class: &'static str, who: Who) -> Fault {
    Fault { class, who, has_line: true, is_sampled: false, must_page: false, cure: &[] }
}

/// A program whose line ought to be named.
const fn fault(name: &'static str, class: &'static str, who: Who, ranks: u32) -> Program {
    Program { fault: Some(of(class, who)), ..benign(name, ranks) }
}

/// One whose fault no line of its own is to blame for, or none that the recorder looks at.
const fn lineless(name: &'static str, class: &'static str, who: Who, ranks: u32) -> Program {
    let fault = Fault { has_line: false, ..of(class, who) };
    Program { fault: Some(fault), ..benign(name, ranks) }
}

/// One whose line is known from samples of its workers.
const fn sampled(name: &'static str, class: &'static str, who: Who, ranks: u32) -> Program {
    let fault = Fault { is_sampled: true, ..of(class, who) };
    Program { fault: Some(fault), ..benign(name, ranks) }
}

impl Program {
    /// With a remedy that its `--cured` applies, as one of these words names it.
    const fn cured_by(self, cure: &'static [&'static str]) -> Self {
        let Some(fault) = self.fault else { panic!("nothing is wrong with it") };
        Self { fault: Some(Fault { cure, ..fault }), ..self }
    }
}

/// One with which nothing is wrong.
const fn benign(name: &'static str, ranks: u32) -> Program {
    Program {
        name,
        script: name,
        ranks,
        devices: 1,
        device: "4G",
        options: &[],
        arguments: &[],
        environment: &[],
        fault: None,
        has_steps: true,
        fails: false,
        is_quick: false,
    }
}
