//! Growth and places in code as people say them, with the words for numbers.

use alloc::format;
use alloc::string::{String, ToString};

use super::evidence::account::Measure;
use crate::snapshot::Frame;
use crate::snapshot::frames::{is_compiled_region, resumed_function};
pub use crate::words::*;

/// An amount of growth: bytes, or a number of tensors.
pub(crate) fn amount(measure: Measure, value: i64) -> String {
    let value = value.max(0).unsigned_abs();
    match (measure, value) {
        (Measure::Bytes, _) => bytes(value),
        (Measure::Blocks, 1) => "1 tensor".to_string(),
        (Measure::Blocks, _) => format!("{} tensors", count(value)),
    }
}

/// `train.py:36 in train_step`; of code that `torch.compile` made, that it is.
pub fn location(frame: &Frame) -> String {
    if is_compiled_region(frame) {
        return format!("a compiled region, line {} in {}", frame.line, frame.file);
    }
    if let Some(function) = resumed_function(frame) {
        let function = format!("{function}, compiled");
        return location(&Frame { file: frame.file.clone(), line: frame.line, function });
    }
    if frame.file.is_empty() && frame.function.is_empty() {
        return "an unknown place".to_string();
    }
    let name = frame.file.rsplit('/').next().unwrap_or_default();
    let line = if frame.line == 0 { String::new() } else { format!(":{}", frame.line) };
    match (name.is_empty(), frame.function.is_empty()) {
        (true, _) => frame.function.clone(),
        (false, true) => format!("{name}{line}"),
        (false, false) => format!("{name}{line} in {}", frame.function),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_read_well() {
        let check = |file: &str, line: u32, function: &str, expected: &str| {
            let frame = Frame { file: file.to_string(), line, function: function.to_string() };
            assert_eq!(location(&frame), expected);
        };
        check("/app/train.py", 36, "train_step", "train.py:36 in train_step");
        check("train.py", 0, "", "train.py");
        check("/a/t.py", 7, "torch_dynamo_resume_in_f_at_7", "t.py:7 in f, compiled");
        let written = "/tmp/c/l3/cl3bdbxe7xrorhb5ffdvvrxlzgyhqdiezyktegqdbhmhe74ygp3u.py";
        let said = format!("a compiled region, line 9 in {written}");
        check(written, 9, "Runner.call", &said);
        check("", 0, "backward", "backward");
        check("", 0, "", "an unknown place");
    }
}
