//! Which frame of a stack is the user's own code.

use super::Frame;

/// Parts of a path that mark code which was installed or generated, not written by the user.
const FOREIGN_PARTS: [&str; 5] =
    ["site-packages/", "dist-packages/", "/torchinductor_", "/lib/python2", "/lib/python3"];

/// Names in PyTorch's own folder `torch`, besides names that begin with an underscore. A PyTorch
/// built from source lies in no `site-packages`, and people have folders called `torch`.
const TORCH_PARTS: [&str; 18] = [
    "accelerator",
    "amp",
    "ao",
    "autograd",
    "backends",
    "cuda",
    "distributed",
    "distributions",
    "export",
    "func",
    "functional.py",
    "fx",
    "jit",
    "nn",
    "optim",
    "profiler",
    "testing",
    "utils",
];

/// Names in angle brackets that are the user's all the same: notebooks and the prompt.
const OWN_NAMES: [&str; 2] = ["<ipython-input", "<stdin>"];

/// Characters of the names that `torch.compile` gives to the files it writes: `c` and a hash.
const COMPILED_NAME_CHARS_MIN: usize = 40;

/// Prefix of the functions that resume a compiled function after a graph break.
const RESUMED: &str = "torch_dynamo_resume_in_";

/// Functions of PyTorch's optimizers that make the states of a parameter.
const STATE_MAKERS: [&str; 2] = ["_init_group", "_init_state"];

/// True where an optimizer made the memory as the state of a parameter. A closure that the
/// optimizer calls is user code, and what lies further out is not asked.
pub fn is_optimizer_state(stack: &[&Frame]) -> bool {
    let makes_it = |frame: &&Frame| {
        let function = frame.function.rsplit('.').next().unwrap_or_default();
        frame.file.contains("/optim/") && STATE_MAKERS.contains(&function)
    };
    stack.iter().take_while(|frame| !is_user_frame(frame)).any(makes_it)
}

/// True for code that `torch.compile` wrote: `…/l3/cl3bdb….py`, wherever its cache lies.
pub fn is_compiled_region(frame: &Frame) -> bool {
    let Some((folder, name)) = frame.file.rsplit_once('/') else { return false };
    let Some(hash) = name.strip_suffix(".py").and_then(|name| name.strip_prefix('c')) else {
        return false;
    };
    let is_hash = |c: u8| c.is_ascii_lowercase() || (b'2'..=b'7').contains(&c);
    hash.len() + 1 >= COMPILED_NAME_CHARS_MIN
        && hash.bytes().all(is_hash)
        && folder.rsplit('/').next().is_some_and(|folder| hash.get(..2) == Some(folder))
}

/// The user's function that this function resumes after a graph break.
pub fn resumed_function(frame: &Frame) -> Option<&str> {
    let (_, rest) = frame.function.split_once(RESUMED)?;
    rest.rsplit_once("_at_").map(|(function, _)| function)
}

/// True for code of the user, judged by its path.
pub fn is_user_frame(frame: &Frame) -> bool {
    let file = frame.file.as_str();
    if file.starts_with('<') {
        return OWN_NAMES.iter().any(|name| file.starts_with(name));
    }
    let is_foreign = FOREIGN_PARTS.iter().any(|part| file.contains(part))
        || is_inside_torch(file)
        || !file.contains('.');
    !file.is_empty() && !is_foreign && !is_compiled_region(frame)
}

fn is_inside_torch(file: &str) -> bool {
    let mut parts = file.split('/');
    while let Some(part) = parts.next() {
        let Some(next) = parts.clone().next().filter(|_| part == "torch") else { continue };
        if next.starts_with('_') || TORCH_PARTS.contains(&next) {
            return true;
        }
    }
    false
}

/// True for PyTorch's call of a module, which runs `forward` and the hooks.
pub fn is_module_call(frame: &Frame) -> bool {
    frame.file.ends_with("torch/nn/modules/module.py")
}

/// Nodes of autograd that have no operator's name, and what a snapshot calls a backward pass whose
/// node it does not show.
const BACKWARD_NODES: [&str; 3] = ["AccumulateGrad", "CopySlices", "autograd"];

/// True for a function of autograd that runs in the backward pass: `MmBackward0`, `f.backward`.
pub fn is_backward(frame: &Frame) -> bool {
    let is_node = frame.file.is_empty()
        && (frame.function.contains("Backward") || BACKWARD_NODES.contains(&&*frame.function));
    is_node || frame.function.ends_with(".backward")
}

/// True for code that was installed and is neither PyTorch's own nor Python's.
pub fn is_library_frame(frame: &Frame) -> bool {
    let file = frame.file.as_str();
    let packages = ["site-packages/", "dist-packages/"];
    let is_torch = file.contains("-packages/torch/") || is_inside_torch(file);
    packages.iter().any(|part| file.contains(part)) && !is_torch
}

/// The frame to show to a person: the innermost frame of the user's code; or else the innermost of
/// a library other than PyTorch, or else the innermost known frame.
pub fn telling_frame<'a>(stack: &[&'a Frame]) -> Option<&'a Frame> {
    let known = |frame: &&&Frame| !frame.file.is_empty() || !frame.function.is_empty();
    let own = stack.iter().find(|frame| is_user_frame(frame));
    let of_library = || stack.iter().find(|frame| is_library_frame(frame));
    own.or_else(of_library).or_else(|| stack.iter().find(known)).copied()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn user_code_is_distinguished_from_libraries() {
        let check = |file: &str, expected: bool| {
            let frame = Frame { file: file.to_string(), line: 1, function: "f".to_string() };
            assert_eq!(is_user_frame(&frame), expected, "{file}");
        };
        check("/app/train.py", true);
        check("train.py", true);
        check("<ipython-input-3-abc>", true);
        check("/tmp/ipykernel_12/345.py", true);
        check("/opt/venv/lib/python3.12/site-packages/transformers/trainer.py", false);
        check("/usr/lib/python3/dist-packages/numpy/core.py", false);
        check("/usr/lib/python3.12/threading.py", false);
        check("/src/torch/nn/modules/module.py", false);
        check("torch/nn/modules/module.py", false);
        check("/src/torch/_tensor.py", false);
        check("/src/torch/functional.py", false);
        check("/home/me/torch/train.py", true);
        check("/home/me/torch/models/nn.py", true);
        check("torch/train.py", true);
        check("/tmp/torchinductor_root/ab/cab.py", false);
        check("/scratch/cache/l3/cl3bdbxe7xrorhb5ffdvvrxlzgyhqdiezyktegqdbhmhe74ygp3u.py", false);
        check("/app/l3/clever_name_of_a_module_that_is_the_users_own_and_long.py", true);
        check("/app/l4/cl3bdbxe7xrorhb5ffdvvrxlzgyhqdiezyktegqdbhmhe74ygp3u.py", true);
        check("<frozen importlib._bootstrap>", false);
        check("<string>", false);
        check("<built-in>", false);
        check("backward", false);
        check("", false);
    }
    #[test]
    fn functions_cut_by_a_graph_break_keep_their_name() {
        let name = |function: &str| {
            let (file, function) = ("/app/train.py".to_string(), function.to_string());
            resumed_function(&Frame { file, line: 7, function }).map(ToString::to_string)
        };
        assert_eq!(name("torch_dynamo_resume_in_step_at_7").as_deref(), Some("step"));
        assert_eq!(name("torch_dynamo_resume_in_a_at_b_at_12").as_deref(), Some("a_at_b"));
        assert_eq!(name("step"), None);
    }

    #[test]
    fn optimizer_states_are_known_by_their_maker() {
        let frame = |file: &str, function: &str| Frame {
            file: file.into(),
            line: 7,
            function: function.into(),
        };
        let step = frame("/x/site-packages/torch/optim/adam.py", "Adam.step");
        let user = frame("/app/train.py", "closure");
        for name in ["_init_group", "AdamW._init_group", "Muon._init_state"] {
            let maker = frame("/x/site-packages/torch/optim/adam.py", name);
            assert!(is_optimizer_state(&[&maker, &step, &user]), "{name}");
            assert!(!is_optimizer_state(&[&user, &maker, &step]), "{name}");
        }
        assert!(!is_optimizer_state(&[&step, &user]));
        assert!(!is_optimizer_state(&[]));
    }
}
