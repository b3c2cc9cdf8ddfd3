//! The programs whose memory this is: files, functions and stacks as PyTorch jobs have them.
//!
//! A *site* is a line of the user's code that allocates, with the library's frames below it (the
//! innermost ones) and the way to `main` above it. Four layouts of projects are drawn from; lines
//! are drawn at random, so that no two sites share one by accident.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::snapshot::Frame;

use crate::rng::Rng;

const SITE: &str = "/opt/venv/lib/python3.12/site-packages";

/// Library code between the user's line and the allocation, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// The line itself allocates.
    None,
    /// A linear layer, called as a module.
    Linear,
    /// A lookup in a table.
    Embedding,
    /// Attention.
    Attention,
    /// Another operation on tensors.
    Functional,
    /// The optimizer's state.
    Adam,
    /// Sharded parameters are gathered.
    Fsdp,
    /// A collective or a process group.
    Distributed,
    /// Code that `torch.compile` wrote.
    Inductor,
    /// A CUDA graph is recorded.
    Graphs,
    /// A copy to the device.
    Copy,
}

impl Library {
    fn frames(self) -> &'static [(&'static str, u32, &'static str)] {
        const CALL: (&str, u32, &str) = ("torch/nn/modules/module.py", 1784, "Module._call_impl");
        match self {
            Self::None => &[],
            Self::Linear => &[("torch/nn/modules/linear.py", 134, "Linear.forward"), CALL],
            Self::Embedding => &[
                ("torch/nn/functional.py", 2542, "embedding"),
                ("torch/nn/modules/sparse.py", 192, "Embedding.forward"),
                CALL,
            ],
            Self::Attention => {
                &[("torch/nn/functional.py", 6497, "scaled_dot_product_attention"), CALL]
            }
            Self::Functional => &[("torch/nn/functional.py", 3479, "cross_entropy")],
            Self::Adam => &[
                ("torch/optim/adamw.py", 124, "AdamW._init_group"),
                ("torch/optim/adam.py", 238, "Adam.step"),
                ("torch/optim/optimizer.py", 517, "profile_hook_step.<locals>.wrapper"),
            ],
            Self::Fsdp => &[
                ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 171, "all_gather"),
                ("torch/distributed/fsdp/_fully_shard/_fsdp_state.py", 233, "_pre_forward"),
                CALL,
            ],
            Self::Distributed => &[
                ("torch/distributed/distributed_c10d.py", 2810, "all_reduce"),
                ("torch/distributed/c10d_logger.py", 83, "wrapper"),
            ],
            Self::Inductor => &[
                ("torch/_inductor/utils.py", 3017, "run"),
                ("torch/_dynamo/eval_frame.py", 929, "compile_wrapper"),
            ],
            Self::Graphs => &[
                ("torch/_inductor/cudagraph_trees.py", 1214, "CUDAGraphNode._record"),
                ("torch/_inductor/cudagraph_trees.py", 2122, "CUDAGraphTreeManager.run"),
            ],
            Self::Copy => &[("torch/nn/modules/module.py", 1343, "Module.to.<locals>.convert")],
        }
    }
}

/// A line that allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Index of its stack.
    pub stack: u32,
    /// The line of the user's code that a person should look at.
    pub frame: Frame,
}

/// All stacks of one job; the same on every rank.
#[derive(Clone, Debug)]
pub struct Code {
    /// Entry 0 is the unknown frame.
    pub frames: Vec<Frame>,
    /// Entry 0 is the unknown stack; innermost frame first.
    pub stacks: Vec<Vec<u32>>,
    index: BTreeMap<Frame, u32>,
    layout: &'static Layout,
    used_lines: BTreeSet<(String, u32)>,
    main: u32,
    rng: Rng,
}

/// How a project is laid out: file and function of what calls the training step, outermost last.
#[derive(Debug)]
struct Layout {
    root: &'static str,
    outer: &'static [(&'static str, &'static str)],
}

const LAYOUTS: [Layout; 4] = [
    Layout { root: "/app", outer: &[("train.py", "train_step"), ("train.py", "main")] },
    Layout {
        root: "/workspace/pretrain",
        outer: &[
            ("engine/loop.py", "Loop.step"),
            ("engine/loop.py", "Loop.run"),
            ("launch.py", "<module>"),
        ],
    },
    Layout {
        root: "/home/research/exp",
        outer: &[("trainer.py", "Trainer.training_step"), ("run.py", "main")],
    },
    Layout {
        root: "/code/src",
        outer: &[("lit_module.py", "LitModel.training_step"), ("fit.py", "fit")],
    },
];

impl Code {
    /// The code of a job.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 0xc0de);
        let layout = LAYOUTS.get(rng.between(0, 4) as usize).unwrap_or(&LAYOUTS[0]);
        let mut code = Self {
            frames: vec![Frame::default()],
            stacks: vec![Vec::new()],
            index: BTreeMap::new(),
            layout,
            used_lines: BTreeSet::new(),
            main: 0,
            rng,
        };
        code.main = code.line(layout.outer.last().map_or("main.py", |outer| outer.0)) % 200 + 300;
        code
    }

    /// A new line of the user's code, in this file and function, that allocates through a library.
    pub fn site(&mut self, library: Library, file: &str, function: &str) -> Site {
        let line = self.line(file);
        self.site_at(library, file, line, function)
    }

    /// Another stack through a line there is, by another library function.
    pub fn same_line(&mut self, of: &Site, library: Library) -> Site {
        let (file, line) = (of.frame.file.clone(), of.frame.line);
        let relative = file.trim_start_matches(self.layout.root).trim_start_matches('/');
        let (relative, function) = (relative.to_string(), of.frame.function.clone());
        self.site_at(library, &relative, line, &function)
    }

    /// What a backward thread allocates: it has no Python frames.
    pub fn backward(&mut self) -> u32 {
        let frame = Frame { file: String::new(), line: 0, function: "backward".to_string() };
        let index = self.frame(frame);
        self.push(vec![index])
    }

    fn site_at(&mut self, library: Library, file: &str, line: u32, function: &str) -> Site {
        let root = self.layout.root;
        let own = |file: &str, line: u32, function: &str| Frame {
            file: format!("{root}/{file}"),
            line,
            function: function.to_string(),
        };
        let mut stack = Vec::new();
        for &(file, line, function) in library.frames() {
            let file = format!("{SITE}/{file}");
            stack.push(self.frame(Frame { file, line, function: function.to_string() }));
        }
        let frame = own(file, line, function);
        stack.push(self.frame(frame.clone()));
        for (depth, (file, function)) in self.layout.outer.iter().enumerate() {
            // One call leads to all that a step does; the lines of the callers do not tell.
            stack.push(self.frame(own(file, self.main + 7 * depth as u32, function)));
        }
        Site { stack: self.push(stack), frame }
    }

    fn line(&mut self, file: &str) -> u32 {
        loop {
            let line = self.rng.between(12, 900) as u32;
            if self.used_lines.insert((file.to_string(), line)) {
                return line;
            }
        }
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        let next = self.frames.len() as u32;
        let index = *self.index.entry(frame.clone()).or_insert(next);
        if index == next {
            self.frames.push(frame);
        }
        index
    }

    fn push(&mut self, stack: Vec<u32>) -> u32 {
        if let Some(known) = self.stacks.iter().position(|known| *known == stack) {
            return known as u32;
        }
        self.stacks.push(stack);
        self.stacks.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::diagnosis::telling_frame;

    use super::*;

    #[test]
    fn the_shown_line_is_of_user_code() {
        for seed in 0..8 {
            let mut code = Code::new(seed);
            for library in [Library::None, Library::Linear, Library::Adam, Library::Inductor] {
                let site = code.site(library, "models/block.py", "Block.forward");
                let frames: Vec<&Frame> = code.stacks[site.stack as usize]
                    .iter()
                    .map(|&index| &code.frames[index as usize])
                    .collect();
                assert_eq!(telling_frame(&frames), Some(&site.frame), "{library:?}");
                let other = code.same_line(&site, Library::Functional);
                assert_eq!(other.frame, site.frame);
                assert_ne!(other.stack, site.stack);
            }
        }
    }
}
