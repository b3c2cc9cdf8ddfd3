//! How the time of the loop is shared between events and requests, and by node.

use memtape_core::capacity::Division;
use tokio::time::{Duration, advance};

use super::*;
use crate::quota::Quotas;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Handles what waits in both queues, which are always full, for this long: an event takes a
/// millisecond, a request as long as stated. Returns the time of the events and of the requests.
async fn shared(request: Duration, total: Duration) -> (Duration, Duration) {
    let (events, requests, mut queues) = Queues::new();
    let (mut of_events, mut of_requests) = (Duration::ZERO, Duration::ZERO);
    while of_events + of_requests < total {
        while events.try_send(Event::Tick).is_ok() {}
        while requests.try_send(Event::Asked(Box::new(|_| {}))).is_ok() {}
        let (took, of) = match queues.next().await.expect("both queues are full") {
            Event::Tick => (MILLISECOND, &mut of_events),
            _ => (request, &mut of_requests),
        };
        advance(took).await;
        *of += took;
    }
    (of_events, of_requests)
}

#[tokio::test(start_paused = true)]
async fn requests_have_a_fifth_of_a_busy_loop_however_long_they_take() {
    for request in [1, 40, 700].map(|times| MILLISECOND * times) {
        let (of_events, of_requests) = shared(request, 1_000 * request).await;
        let share = of_requests.as_secs_f64() / (of_events + of_requests).as_secs_f64();
        assert!((0.19..0.21).contains(&share), "{request:?}: {share}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_need_not_wait_for_an_idle_loop() {
    let (_events, requests, mut queues) = Queues::new();
    for _ in 0..3 {
        requests.try_send(Event::Asked(Box::new(|_| {}))).unwrap();
        assert!(matches!(queues.next().await, Some(Event::Asked(_))));
        advance(MILLISECOND).await;
    }
}

/// A node sends events on 64 streams without a pause. Whenever an event of another node comes, one
/// of the flood is before it.
#[tokio::test]
async fn a_flood_of_one_node_delays_an_event_of_another_by_one() {
    let quotas = Quotas::new(Division::of(None));
    let (events, _requests, mut queues) = Queues::new();
    let send = |node: &str, count| {
        let (node, events) = (quotas.node(node), events.clone());
        tokio::spawn(async move {
            for stream in 0..count {
                let turn = node.begin_event().await;
                let _ = events.send(Event::Gone { stream: stream + count, turn }).await;
            }
        })
    };
    (0..64).for_each(|_| drop(send("evil", 1_000)));
    for _ in 0..50 {
        drop(send("honest", 1));
        tokio::task::yield_now().await;
        let mut flood = 0;
        while let Some(Event::Gone { stream, turn }) = queues.next().await
            && stream != 1
        {
            flood += 1;
            drop(turn);
            tokio::task::yield_now().await;
        }
        assert!(flood <= 1, "{flood} events of the flood came first");
    }
}
