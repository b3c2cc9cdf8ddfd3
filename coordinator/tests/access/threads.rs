//! What people do about an incident: who may, what is kept and audited, and what the alerts see.

use memtape_core::limits::{NOTES_PER_INCIDENT_MAX, THREAD_NOTE_BYTES_MAX};

use super::*;
use crate::fake::wall_ns;

/// The incident of a rank that the kernel killed, once it pages.
async fn dead_rank(cluster: &Cluster, agent: &mut Agent) -> String {
    train(agent, &JOB, 1000).await;
    let (tape_id, end) = (JOB.tape(1), v1::RankEnd::OomKilled.into());
    let down = v1::RankDown { tape_id, end, wall_ns: wall_ns(), step: 8, ..Default::default() };
    agent.say(FromAgent::RankDown(down)).await;
    let request = agent.asked().await;
    agent.serve(&JOB, &request).await;
    let pages = |answer: &Value| answer["incidents"][0]["urgency"] == "page";
    let answer = wait(&cluster.user("admin"), "/incidents", pages).await;
    answer["incidents"][0]["id"].as_str().unwrap().to_string()
}

async fn wait(client: &Client, path: &str, is_there: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let (_, answer) = client.get(path).await;
        if is_there(&answer) {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "{path} is still {answer:#}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// The urgency that the alerts see, and the number of silenced incidents.
async fn exported(client: &Client) -> (String, String) {
    let (_, text) = client.get("/../../metrics").await;
    let text = text.as_str().unwrap();
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("exported");
    let urgency = line("memtape_incident_active{").split("urgency=\"").nth(1).unwrap();
    let silenced = line("memtape_incidents_silenced ").split(' ').nth(1).unwrap();
    (urgency.split('"').next().unwrap().to_string(), silenced.to_string())
}

fn pair(urgency: &str, silenced: &str) -> (String, String) {
    (urgency.to_string(), silenced.to_string())
}

#[tokio::test]
async fn an_operator_acts_on_an_incident_and_it_is_kept_and_audited() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    let id = dead_rank(&cluster, &mut agent).await;
    let [admin, alice, olga] = ["admin", "alice", "olga"].map(|name| cluster.user(name));
    let (one, thread) = (format!("/incidents/{id}"), format!("/incidents/{id}/thread"));
    let (_, untouched) = olga.get(&one).await;
    assert_eq!(exported(&admin).await, pair("page", "0.0"));
    // A viewer changes nothing.
    let end = wall_ns() + 7_200_000_000_000;
    let silence = json!({ "silence_until_wall_ns": end });
    assert_eq!(alice.get(&one).await.1["thread"]["may_change"], false);
    assert_eq!(untouched["thread"]["may_change"], true);
    assert_eq!(alice.post(&thread, &silence).await.0, 403);
    assert_eq!(olga.post("/incidents/inc-none/thread", &silence).await.0, 404);
    assert_eq!(olga.get(&one).await.1["thread"], untouched["thread"]);
    // One request is done as a whole, and again with the same result.
    let wish = json!({ "acknowledge": true, "silence_until_wall_ns": end, "assignee": " team-a\t1 ",
        "note": "restart it\r\nat \u{202e}night\u{1b}[31m\n" });
    let (status, changed) = olga.post(&thread, &wish).await;
    assert_eq!(status, 200, "{changed}");
    let kept = &changed["thread"];
    let who = "spiffe://memtape/user/olga";
    assert_eq!(
        (&kept["acknowledged"]["who"], &kept["assignee"]),
        (&json!(who), &json!("team-a 1"))
    );
    let [acknowledged, silenced, assigned, noted] = &kept["entries"].as_array().unwrap()[..] else {
        panic!("{kept:#}");
    };
    assert_eq!(acknowledged["deed"], "acknowledged");
    assert_eq!((&silenced["deed"], &silenced["until_wall_ns"]), (&json!("silenced"), &json!(end)));
    assert_eq!((&assigned["deed"], &assigned["text"]), (&json!("assigned"), &json!("team-a 1")));
    assert_eq!((&noted["deed"], &noted["who"]), (&json!("noted"), &json!(who)));
    assert_eq!(noted["text"], "restart it\nat \\u{202e}night\\u{1b}[31m");
    assert_eq!(kept["silence"]["holds"], true, "{kept}");
    assert_eq!((&changed["urgency"], &kept["notes_total"]), (&json!("page"), &json!(1)));
    assert_eq!(&admin.post(&thread, &json!({ "acknowledge": true })).await.1["thread"], kept);
    assert_eq!(&olga.post(&thread, &wish).await.1["thread"], kept);
    // Rules that select pages do not see it.
    assert_eq!(exported(&admin).await, pair("notice", "1.0"));
    let (_, list) = alice.get("/incidents").await;
    assert_eq!(list["incidents"][0]["thread"]["entries"], json!([]));
    assert_eq!(list["incidents"][0]["thread"]["notes_total"], 1);
    check_audit(&admin.get("/audit").await.1, &id, end / 1_000_000_000);
    // A restart keeps it.
    let kept = kept.clone();
    let Cluster { folder, running } = cluster;
    running.stop().await;
    let cluster = Cluster::start_in(folder).await;
    let [admin, olga] = ["admin", "olga"].map(|name| cluster.user(name));
    assert_eq!(olga.get(&one).await.1["thread"], kept);
    assert_eq!(exported(&admin).await, pair("notice", "1.0"));
    let (_, changed) = olga.post(&thread, &json!({ "end_silence": true })).await;
    assert_eq!(changed["thread"]["silence"], Value::Null);
    assert_eq!(exported(&admin).await, pair("page", "0.0"));
    cluster.running.stop().await;
}

/// Each request has one entry, and one that is refused has none but that of its refusal.
fn check_audit(audit: &Value, id: &str, end: i64) {
    let all = audit["entries"].as_array().unwrap().iter();
    let of = |who: &str| {
        let who = format!("spiffe://memtape/user/{who}");
        let its = all.clone().filter(move |entry| entry["who"] == who.as_str());
        let its = its.filter(|entry| entry["action"] == "incident");
        its.map(|entry| entry["subject"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let expected = format!(
        "{id}: acknowledge, silence until Unix time {end}, assign to team-a 1, add a note of 37 \
         bytes"
    );
    assert_eq!(of("olga"), [expected.clone(), expected], "{audit:#}");
    assert_eq!(of("admin"), [format!("{id}: acknowledge")]);
    assert_eq!(of("alice"), Vec::<String>::new());
}

#[tokio::test]
async fn requests_beyond_the_limits_of_a_thread_are_refused_in_one_line() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.agent("n1", "n1").await.unwrap();
    let id = dead_rank(&cluster, &mut agent).await;
    let olga = cluster.user("olga");
    let thread = format!("/incidents/{id}/thread");
    let notes = (0..NOTES_PER_INCIDENT_MAX).map(|number| format!("note {number}"));
    for note in notes {
        assert_eq!(olga.post(&thread, &json!({ "note": note })).await.0, 200);
    }
    for (wish, expected, words) in [
        (json!({}), 400, "nothing is asked for"),
        (json!({ "note": "one more" }), 409, "32 notes at most"),
        (json!({ "note": "x".repeat(THREAD_NOTE_BYTES_MAX + 1) }), 400, "2048 bytes at most"),
        (json!({ "note": " \n " }), 400, "empty"),
        (json!({ "assignee": "\u{200b}".repeat(20) }), 400, "128 bytes at most"),
        (json!({ "silence_until_wall_ns": 5 }), 400, "name a later time"),
        (json!({ "silence_until_wall_ns": i64::MAX }), 400, "30 days at most"),
        (json!({ "silence_until_step": 9 }), 400, "judges no further steps"),
        (json!({ "silence_until_step": 9, "end_silence": true }), 400, "one end"),
        (json!({ "silence_until_step": "nine" }), 400, "must be JSON as in"),
        (json!({ "acknowledge": true, "note": "" }), 400, "empty"),
    ] {
        let (status, answer) = olga.post(&thread, &wish).await;
        assert_eq!(status, expected, "{wish}: {answer}");
        let line = answer["error"].as_str().unwrap();
        assert!(line.contains(words) && !line.contains('\n'), "{line}");
    }
    // All or nothing.
    let (_, incident) = olga.get(&format!("/incidents/{id}")).await;
    assert_eq!(incident["thread"]["acknowledged"], Value::Null);
    assert_eq!(incident["thread"]["notes_total"], 32);
    cluster.running.stop().await;
}
