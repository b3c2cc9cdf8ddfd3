//! Words that the project does not use: retired ones, and paths of one machine.
//!
//! A retired word has a plain one that stands for it (`CONTRIBUTING.md` has the table). Some words
//! are retired wherever they stand, others only as names, because prose needs them.

use crate::source::{Source, TEXT, check, sources};

/// Retired everywhere: in prose, in names, in messages. What to say instead stands behind it.
const RETIRED: [(&str, &str); 46] = [
    ("guest", "the recorder"),
    ("guests", "recorders"),
    ("ghost", "a rank without a tape"),
    ("ghosts", "ranks without a tape"),
    ("solo", "an agent-initiated capture"),
    ("solos", "agent-initiated captures"),
    ("shelf", "the tape source"),
    ("shelves", "tape sources"),
    ("platter", "the simulated disk"),
    ("dice", "the rng"),
    ("teeth", "sawtooth cycles"),
    ("tooth", "a sawtooth cycle"),
    ("residue", "retained growth"),
    ("residues", "retained growth"),
    ("bottoms", "troughs"),
    ("habit", "a recurring condition"),
    ("habits", "recurring conditions"),
    ("untold", "suppressed"),
    ("told", "reported"),
    ("atoms", "interned entries"),
    ("tide", "the level"),
    ("harbour", "a peer"),
    ("anew", "again"),
    ("nobody", "name the subject"),
    ("somebody", "name the subject"),
    ("whoever", "name the subject"),
    ("anybody", "name the subject"),
    ("scrap", "inactive split"),
    ("succession", "deduplication"),
    ("platters", "simulated disks"),
    ("so many", "say the number"),
    ("good to know", "notes"),
    ("picture of a rank", "the snapshot of a rank"),
    ("last picture", "the last capture"),
    ("said aloud", "printed"),
    ("aloud", "printed"),
    ("is no news", "was reported before"),
    ("the rest of it", "name it"),
    ("goes blind", "does not see"),
    ("manners", "non-interference"),
    ("ghostly", "without a tape"),
    ("by heart", "exactly"),
    ("wakes somebody", "pages"),
    ("bodies", "snapshots"),
    ("rank body", "RankSnapshot"),
    ("stored body", "the stored snapshot"),
];

/// Retired as the name, or a part of the name, of a type, a function, a constant or a module.
const RETIRED_NAMES: [&str; 24] = [
    "moment",
    "moments",
    "place",
    "places",
    "course",
    "around",
    "circumstances",
    "sight",
    "edge",
    "looks",
    "home",
    "pace",
    "blind",
    "elsewhere",
    "anchor",
    "gate",
    "gates",
    "lives",
    "welcome",
    "bite",
    "hear",
    "meet",
    "body",
    "bodies",
];

/// What was released under the old names, and this list itself.
const EXEMPT: [&str; 3] = ["CHANGELOG.md", "CONTRIBUTING.md", "tests/repository/words.rs"];

#[test]
fn retired_words_are_gone() {
    let bad = Source::of("a.rs", "// The guest says so many things.\nfn f(is_told: bool) {}\n");
    assert_eq!(retired(&bad).len(), 3);
    assert_eq!(retired(&Source::of("a.rs", "fn take_place() {}\nstruct LastMoment;\n")).len(), 2);
    assert_eq!(retired(&Source::of("a.rs", "// In the first place.\nlet atomic = 1;\n")).len(), 0);
    let mut files = sources(&TEXT);
    files.retain(|file| !EXEMPT.iter().any(|exempt| file.path.starts_with(exempt)));
    check(retired, &bad, &files);
}

/// Names in data that exists: families of the evaluation, and fields of old stores.
const KEPT_NAMES: [&str; 7] = [
    "sleep_residue",
    "prefetch_tide",
    "serde(rename = \"told\")",
    "serde(rename = \"told_in\")",
    "\"bodies\"",
    "bodies/xx",
    "rename = \"bodies_url\"",
];

fn retired(file: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        let line = &KEPT_NAMES.iter().fold(line.to_string(), |line, name| line.replace(name, ""));
        let words = format!(" {} ", words_of(line).join(" "));
        for (word, instead) in RETIRED {
            if words.match_indices(&format!(" {word} ")).any(|(at, found)| {
                // To tell one thing from another is plain English.
                let after = words[at + found.len()..].split(' ').next();
                !(word == "told" && matches!(after, Some("apart" | "from")))
            }) {
                found.push(format!("{}:{number}: `{word}` is retired: {instead}", file.path));
            }
        }
        let name = declared_name(line).filter(|_| file.path.ends_with(".rs"));
        let parts = name.map(words_of).unwrap_or_default();
        for part in parts.iter().filter(|part| RETIRED_NAMES.contains(&part.as_str())) {
            found.push(format!("{}:{number}: `{part}` is retired as a name", file.path));
        }
    }
    found
}

/// The words of a line in lower case; names are cut at `_` and where a capital letter begins.
fn words_of(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        let is_letter = c.is_alphanumeric();
        if !is_letter || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if is_letter {
            words.last_mut().expect("one word at least").extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The name that a line of Rust declares, if it declares one.
fn declared_name(line: &str) -> Option<&str> {
    let is_qualifier = |word: &&str| {
        matches!(*word, "async" | "const" | "unsafe" | "extern" | "\"C\"")
            || word.starts_with("pub")
    };
    let mut words = line.split_whitespace().skip_while(|word| {
        is_qualifier(word) && *word != "const" || (*word == "const" && line.contains("fn "))
    });
    let kind = words.next()?;
    let is_declared =
        matches!(kind, "fn" | "struct" | "enum" | "trait" | "type" | "mod" | "const" | "static");
    let name = words.next().filter(|_| is_declared)?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn words_of_other_places_stay_there() {
    let path = ["/ro", "ot/.cargo"].concat();
    check(foreign_words, &Source::of("a.md", &path), &sources(&TEXT));
}

/// Absolute paths of one machine mean nothing on any other.
fn foreign_words(file: &Source) -> Vec<String> {
    let words = ["/work/", "/root/"];
    if file.path == "tests/repository/words.rs" {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, line) in file.lines() {
        for word in words.iter().filter(|word| has_path(line, word)) {
            found.push(format!("{}:{number}: {word} is a path of one machine", file.path));
        }
    }
    found
}

/// The word at the start of a path, not in the middle of one.
fn has_path(line: &str, word: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '}');
    line.match_indices(word).any(|(at, _)| !line[..at].ends_with(is_inner))
}
