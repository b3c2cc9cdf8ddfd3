//! How the time of the loop is shared between events and requests.

use tokio::time::{Duration, advance};

use super::*;

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
