//! `/jobs/{job}/area` beside `/jobs/{job}/series`, and the choice of ranks by `/jobs/{job}/ranks`.

use serde_json::{Value, json};

use crate::fake;

/// An area with a column for each step has the series of each rank.
pub(crate) async fn check(running: &fake::Running, step: u64) {
    for (account, column) in
        [("allocated", "step_min_bytes"), ("peak", "peak_bytes"), ("reserved", "reserved_bytes")]
    {
        let path = format!("/api/v1/jobs/train/area?account={account}&columns=1024&from=2");
        let (status, area) = running.get(&path).await;
        assert_eq!((status, &area["account"]), (200, &json!(account)), "{area}");
        assert_eq!((&area["job"], &area["unit"]), (&json!("train@0"), &json!("bytes")));
        assert_eq!((&area["first_step"], &area["steps_per_column"]), (&json!(2), &json!(1)));
        assert_eq!((&area["known_from_step"], &area["is_cut"]), (&json!(1), &json!(false)));
        let (base, scale) = (area["base"].as_u64().unwrap(), area["scale"].as_u64().unwrap());
        let number = |bytes: &Value| json!((bytes.as_u64().unwrap() - base) / scale);
        let mut ranks = Vec::new();
        for rank in 0..4 {
            let path = format!("/api/v1/jobs/train/series?rank={rank}&points=20000&from=2");
            let (_, series) = running.get(&path).await;
            let bytes = series[column].as_array().unwrap();
            let cells: Vec<Value> = bytes.iter().map(number).collect();
            assert_eq!(cells.len() as u64, step - 1);
            assert_eq!(area["rows"][rank]["cells"], json!(cells), "rank {rank}");
            assert_eq!(area["rows"][rank]["extreme_rank"], rank);
            let path = format!("{path}&account={account}");
            let (_, of_account) = running.get(&path).await;
            assert_eq!(of_account["steps"], series["steps"]);
            for extreme in ["lowest", "highest"] {
                assert_eq!(of_account["account"][extreme], series[column], "{account}");
            }
            ranks.push(cells);
        }
        let median = |at: usize| {
            let mut of: Vec<u64> = ranks.iter().map(|cells| cells[at].as_u64().unwrap()).collect();
            of.sort_unstable();
            of[1]
        };
        let medians: Vec<u64> = (0..ranks[0].len()).map(median).collect();
        assert_eq!(area["medians"], json!(medians));
    }
    // One row for all, whose extreme is the rank that leaks.
    let (_, area) = running.get("/api/v1/jobs/train/area?rows=1&first_rank=1").await;
    let row = &area["rows"][0];
    assert_eq!((&row["first_rank"], &row["last_rank"]), (&json!(1), &json!(3)));
    assert_eq!((&row["extreme_rank"], &area["rows"][1]), (&json!(2), &Value::Null));
    check_ranks(running).await;
}

/// A rank with its nearest peers, and the ranks that grow fastest.
async fn check_ranks(running: &fake::Running) {
    for (query, expected) in
        [("near=2&most=2", vec![1, 2]), ("near=0&most=3", vec![0, 1, 2]), ("most=1", vec![2])]
    {
        let (_, answer) = running.get(&format!("/api/v1/jobs/train/ranks?{query}")).await;
        let ranks = answer["ranks"].as_array().unwrap().iter();
        let ranks: Vec<u64> = ranks.map(|rank| rank["rank"].as_u64().unwrap()).collect();
        assert_eq!(ranks, expected, "{query}");
        assert_eq!((&answer["count"], &answer["alive"]), (&json!(4), &json!(4)), "{query}");
    }
    assert_eq!(running.get("/api/v1/jobs/train/ranks?near=99").await.0, 404);
}
