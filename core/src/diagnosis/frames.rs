//! Which frame of a stack is the user's own code.

use crate::snapshot::Frame;

/// Parts of a path that mark code which was installed or generated, not written by the user.
const FOREIGN_PARTS: [&str; 5] =
    ["site-packages/", "dist-packages/", "/torchinductor_", "/lib/python2", "/lib/python3"];

/// What lies in PyTorch's own folder `torch`, besides names that begin with an underscore. A
/// PyTorch built from source lies in no `site-packages`, and people have folders called `torch`.
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

/// True for code that the user wrote, as far as its path tells.
pub fn is_user_frame(frame: &Frame) -> bool {
    let file = frame.file.as_str();
    if file.starts_with('<') {
        return OWN_NAMES.iter().any(|name| file.starts_with(name));
    }
    let is_foreign = FOREIGN_PARTS.iter().any(|part| file.contains(part))
        || is_inside_torch(file)
        || !file.contains('.');
    !file.is_empty() && !is_foreign
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

/// The frame a person should look at: the innermost one of the user's, or else the innermost that
/// is known.
pub fn telling_frame<'a>(stack: &[&'a Frame]) -> Option<&'a Frame> {
    let known = |frame: &&&Frame| !frame.file.is_empty() || !frame.function.is_empty();
    let own = stack.iter().find(|frame| is_user_frame(frame));
    own.or_else(|| stack.iter().find(known)).copied()
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn own_code_is_told_from_the_rest() {
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
        check("<frozen importlib._bootstrap>", false);
        check("<string>", false);
        check("<built-in>", false);
        check("backward", false);
        check("", false);
    }
}
