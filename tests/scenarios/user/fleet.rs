//! Tables of a running coordinator, and the questions of docs/fleet.md asked by DuckDB.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memtape_tests::processes::Process;
use memtape_tests::{Torch, memtape, root, torch};
use serde_json::Value;

/// Asks each question that comes on a line, and prints its rows as JSON.
const ASK: &str = r#"
import duckdb, json, sys
for question in json.loads(sys.argv[1]):
    answer = duckdb.sql(question)
    print(json.dumps([dict(zip(answer.columns, row)) for row in answer.fetchall()], default=str))
"#;

/// The questions of the page, in order.
pub(crate) fn questions() -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs/fleet.md")).expect("the page");
    let blocks = page.split("```sql\n").skip(1).filter_map(|rest| rest.split_once("```"));
    blocks.map(|(question, _)| question.to_string()).collect()
}

/// Asks the questions, with this folder as the working directory; the rows of each answer.
pub(crate) fn answers(torch: &Torch, folder: &Path, questions: &[String]) -> Vec<Value> {
    let asked = serde_json::to_string(questions).expect("JSON");
    let answered = Command::new(&torch.python)
        .args(["-c", ASK, &asked])
        .current_dir(folder)
        .output()
        .expect("python runs");
    assert!(answered.status.success(), "{}", String::from_utf8_lossy(&answered.stderr));
    let text = String::from_utf8(answered.stdout).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn the_questions_about_many_jobs_have_answers() {
    let Some(torch) = torch("questions about many jobs") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let tables = scratch.path().join("tables");
    let mut demo = Command::new(memtape());
    demo.args(["demo", "--ranks", "2", "--leak-rank", "1", "--for", "280s"]);
    let mut demo = Process::start(&mut demo);
    let address = demo.line_with("http://127.0.0.1:", Duration::from_secs(60));
    let address = address.split_whitespace().find(|word| word.starts_with("http")).expect("a URL");
    demo.line_with("the result is in the store", Duration::from_secs(120));
    let export = Command::new(memtape())
        .args(["--coordinator", address.trim_end_matches('/'), "--json"])
        .args(["store", "export", "--parquet"])
        .arg(&tables)
        .output()
        .expect("memtape runs");
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    let rows: Value = serde_json::from_slice(&export.stdout).expect("JSON");
    assert_eq!((&rows["attempts"], &rows["ranks"]), (&1.into(), &2.into()), "{rows}");
    assert!(rows["steps"].as_u64() > Some(10), "{rows}");
    drop(demo);

    let questions = questions();
    assert_eq!(questions.len(), 3);
    let answers = answers(&torch, &tables, &questions);
    let (lines, jobs) = (&answers[0], &answers[1]);
    let file = lines[0]["file"].as_str().expect("a file");
    assert!(root().join(file).exists(), "the demo's own source: {lines}");
    assert!(lines[0]["gpu_hours"].as_f64() > Some(0.0), "{lines}");
    assert_eq!((&lines[0]["attempts"], &lines[0]["lost"]), (&1.into(), &0.0.into()), "{lines}");
    let used = jobs[0]["used"].as_f64().expect("a share");
    assert!(used > 0.0 && used < 0.6, "{jobs}");
    assert!(answers[2].as_array().is_some_and(Vec::is_empty), "{}", answers[2]);
}
