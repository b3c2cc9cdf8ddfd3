//! Which connections give way, and when.

use std::net::SocketAddr;

use memtape_core::limits::UNKNOWN_CALLS_MAX;

use super::*;

fn peer(last: u8, port: u16) -> Peer {
    Peer::new(SocketAddr::from(([127, 0, 0, last], port)))
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_overdue_and_a_busy_one_is_not() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let connection = all.open(peer(1, 1));
    let begin = Instant::now();
    assert_eq!(connection.overdue().await, Loss::ConnectionOverdue);
    assert_eq!(begin.elapsed(), IDLE_MAX);

    let call = connection.begin();
    call.admit((None, Box::new(|_| true)));
    let is_overdue = tokio::time::timeout(Duration::from_secs(600), connection.overdue());
    assert!(is_overdue.await.is_err(), "a call is in progress");
    drop(call);
    assert_eq!(connection.overdue().await, Loss::ConnectionOverdue);
}

#[tokio::test(start_paused = true)]
async fn the_longest_idle_connection_is_closed_first() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let connections: Vec<_> = (1..=3).map(|port| all.open(peer(1, port))).collect();
    let busy = connections[0].begin();
    busy.admit((None, Box::new(|_| true)));
    let given_up = || all.give_up_one().map(|it| it.peer().address.port());
    assert_eq!(given_up(), Some(2));
    assert_eq!(connections[1].overdue().await, Loss::ConnectionGivenUp);
    drop(busy);
    assert_eq!((given_up(), given_up(), given_up()), (Some(3), Some(1), None));
}

#[tokio::test(start_paused = true)]
async fn a_flood_costs_other_networks_nothing() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let _other = all.open(peer(2, 9));
    let _flood: Vec<_> = (1..=50).map(|port| all.open(peer(1, port))).collect();
    for port in 1..=49 {
        let given_up = all.give_up_one().map(|it| it.peer().address.port());
        assert_eq!(given_up, Some(port));
    }
    // One each: the older goes.
    assert_eq!(all.give_up_one().map(|it| it.peer().address.port()), Some(9));
}

#[tokio::test(start_paused = true)]
async fn calls_of_unknown_clients_give_way() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let given_up = || all.give_up_one().map(|it| it.peer().address.port());
    let connections: Vec<_> = (1..=3).map(|port| all.open(peer(1, port))).collect();
    let first = connections[0].begin();
    let second = connections[1].begin();
    second.admit((None, Box::new(|_| true)));
    // The idle one, then that of an unknown client; never that of a known one.
    assert_eq!((given_up(), given_up(), given_up()), (Some(3), Some(1), None));
    drop(first);
    drop(second);

    let _agent = connections[1].begin();
    let flood = all.open(peer(2, 9));
    let mut calls: Vec<_> = (1..UNKNOWN_CALLS_MAX).map(|_| flood.begin()).collect();
    let is_given_up = |it: &Arc<Connection>| it.is_given_up.load(SeqCst);
    assert!(!is_given_up(&flood));
    // A known one counts no more. One more makes the connection with most of them give way,
    // although one of its calls is admitted, and no connection that has just come.
    calls[0].admit((None, Box::new(|_| true)));
    calls.push(flood.begin());
    assert!(!is_given_up(&flood) && !is_given_up(&connections[1]));
    let other = all.open(peer(2, 8));
    let _last = other.begin();
    assert!(is_given_up(&flood));
    assert!(!is_given_up(&connections[1]) && !is_given_up(&other));
    // Of those with as many, one without a known client.
    drop(calls);
    let agent = all.open(peer(2, 7));
    let stream = agent.begin();
    stream.admit((None, Box::new(|_| true)));
    let _upload = agent.begin();
    let _others: Vec<_> = (1..UNKNOWN_CALLS_MAX as u16)
        .map(|port| {
            let connection = all.open(peer(2, 1000 + port));
            let call = connection.begin();
            (connection, call)
        })
        .collect();
    assert!(!is_given_up(&agent) && !is_given_up(&connections[1]));
    assert!(is_given_up(&other), "the oldest of the network with most");
}

#[tokio::test(start_paused = true)]
async fn unfinished_calls_of_one_network_close_no_connection_of_another() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let is_given_up = |it: &Arc<Connection>| it.is_given_up.load(SeqCst);
    let honest: Vec<_> = (1..=3).map(|last| all.open(peer(last, 1))).collect();
    let _unfinished: Vec<_> = honest.iter().map(Connection::begin).collect();
    let idle = all.open(peer(4, 1));
    // Those that are given up are not closed yet: their calls go on for now.
    let flood: Vec<_> = (1..=100).map(|port| all.open(peer(9, port))).collect();
    let each = UNKNOWN_CALLS_MAX / 10;
    let mut calls: Vec<_> =
        flood.iter().flat_map(|it| (0..each).map(|_| it.begin()).collect::<Vec<_>>()).collect();
    let given_up = flood.iter().filter(|it| is_given_up(it)).count();
    assert!((88..=92).contains(&given_up), "{given_up}");
    assert!(!honest.iter().any(is_given_up));
    assert!(lock(&all.waiting).unknown_calls <= UNKNOWN_CALLS_MAX);
    // Calls that begin or end on one that was given up change nothing.
    let closing = flood.iter().find(|it| is_given_up(it)).unwrap();
    let count = || lock(&all.waiting).unknown_calls;
    let before = count();
    calls.push(closing.begin());
    calls.retain(|call| !Arc::ptr_eq(call.connection(), closing));
    assert_eq!(count(), before);
    // Where a place is needed it is the flood's, although another network has an idle one.
    for _ in 0..flood.len() - given_up - 1 {
        assert_eq!(all.give_up_one().unwrap().peer().network(), flood[0].peer().network());
        assert!(!honest.iter().any(is_given_up) && !is_given_up(&idle));
    }
    // All calls of the flood are gone.
    drop(calls);
    assert_eq!(count(), honest.len());
}

#[tokio::test(start_paused = true)]
async fn connections_with_an_accepted_certificate_give_way_last() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let prove = |it: &Arc<Connection>| {
        it.peer().prove(vec![rustls::pki_types::CertificateDer::from(vec![0])]);
        it.proven();
    };
    let given_up = || all.give_up_one().map(|it| it.peer().address.port());
    // In one network, before idle ones with a certificate.
    let agents: Vec<_> = (1..=2).map(|port| all.open(peer(1, port))).collect();
    agents.iter().for_each(prove);
    let unfinished = all.open(peer(1, 3));
    let _call = unfinished.begin();
    assert_eq!(given_up(), Some(3));
    // Of networks with equal parts.
    let _others: Vec<_> = (4..=5).map(|port| all.open(peer(2, port))).collect();
    assert_eq!(given_up(), Some(4));
    // No more than an equal part is kept, with a certificate or without.
    assert_eq!((given_up(), given_up(), given_up(), given_up()), (Some(1), Some(5), Some(2), None));
}

#[tokio::test]
async fn the_call_of_an_answer_lasts_until_its_last_byte() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let connection = all.open(peer(1, 1));
    let call = connection.begin();
    call.admit((None, Box::new(|_| true)));
    let mut body = call.answer(Response::new(Body::from("whole"))).into_body();
    assert_eq!(body.size_hint().exact(), Some(5));
    assert!(!body.is_end_stream());
    assert_eq!(lock(&connection.calls).in_progress, 1);
    let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
    let data = frame.await.unwrap().unwrap().into_data().unwrap();
    assert!(body.is_end_stream() && data == "whole");
    drop(body);
    assert_eq!(lock(&connection.calls).in_progress, 0);
}

#[test]
fn a_connection_is_trusted_while_all_its_calls_are() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let connection = all.open(peer(1, 1));
    let is_valid = Arc::new(AtomicBool::new(true));
    let (seen, call) = (is_valid.clone(), connection.begin());
    call.admit((None, Box::new(move |_| seen.load(SeqCst))));
    let other = connection.begin();
    other.admit((None, Box::new(|_| true)));
    assert!(connection.is_trusted());
    is_valid.store(false, SeqCst);
    assert!(!connection.is_trusted());
    drop(call);
    assert!(connection.is_trusted(), "that call is over");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_read_is_overdue_and_a_silent_one_is_not() {
    let all = Arc::new(Connections::new(UNKNOWN_CALLS_MAX));
    let connection = all.open(peer(1, 1));
    let answer = connection.begin().answer(Response::new(Body::from("unread")));
    let begin = Instant::now();
    assert_eq!(connection.overdue().await, Loss::ConnectionOverdue);
    assert_eq!(begin.elapsed(), STALLED_MAX);
    drop(answer);
    // The stream of an agent, which may be silent for as long as it likes.
    let (send, receive) = tokio::sync::mpsc::channel::<Result<&str, std::io::Error>>(1);
    let stream = Body::from_stream(tokio_stream::wrappers::ReceiverStream::new(receive));
    let call = connection.begin();
    call.admit((None, Box::new(|_| true)));
    let mut stream = call.answer(Response::new(stream)).into_body();
    let mut poll = |context: &mut Context<'_>| {
        Poll::Ready(Pin::new(&mut stream).poll_frame(context).is_ready())
    };
    assert!(!std::future::poll_fn(&mut poll).await, "nothing to read yet");
    let is_overdue = tokio::time::timeout(Duration::from_secs(600), connection.overdue());
    assert!(is_overdue.await.is_err(), "an agent's stream may be silent");
    send.send(Ok("unread")).await.unwrap();
    let begin = Instant::now();
    assert_eq!(connection.overdue().await, Loss::ConnectionOverdue);
    assert!(begin.elapsed() >= STALLED_MAX);
    assert!(std::future::poll_fn(&mut poll).await, "what it had");
    assert!(!std::future::poll_fn(&mut poll).await, "nothing more");
    let is_overdue = tokio::time::timeout(Duration::from_secs(600), connection.overdue());
    assert!(is_overdue.await.is_err(), "what came was read");
}
