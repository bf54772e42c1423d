//! Two clients with the same destination, and more clients than places.

use std::fs;

use crate::{
    copies::trees,
    serving::served::Served,
    support::programs::{eventually, hosts::Outcome},
};

#[test]
fn of_two_clients_with_one_destination_one_wins_and_the_other_is_told() {
    let served = Served::start(&[]);
    trees::small(&served.here("one/tree"), 300, 30_000);
    trees::large(&served.here("one/tree/large"), 8 << 20);
    trees::small(&served.here("other/tree"), 300, 20_000);
    let slow = ["-a", "--bwlimit", "4M", "%one/tree", "@"];
    let first = served.alice(&slow).start();
    eventually("a copy that runs", || {
        served.root("tree").exists().then_some(())
    });
    let second = served
        .client("bob", &["-a", "%other/tree", "@"])
        .start()
        .end();
    second.tells(1, &["tree", "another client", "alice"]);
    first.end().exits(0);
    let whole = fs::read_dir(served.root("tree/0000")).unwrap();
    for file in whole {
        let length = file.unwrap().metadata().unwrap().len();
        assert_eq!(length, 30_000, "a file of the second client");
    }
    // Afterwards the place is free.
    let again = served.client("bob", &["-a", "%other/tree", "@"]);
    again.start().end().exits(0);
}

#[test]
fn clients_beyond_the_places_wait_for_their_turn() {
    let served = Served::start(&["--max-clients", "1"]);
    fs::write(served.here("file"), vec![7; 12 << 20]).unwrap();
    let first = served
        .alice(&["--bwlimit", "3M", "%file", "@first"])
        .start();
    eventually("a copy that runs", || {
        served.root(".first.rdcp-part").exists().then_some(())
    });
    let second = served.client("bob", &["%file", "@second"]).start();
    second.said("that it waits", |text| {
        text.contains("waits for its turn").then_some(())
    });
    assert!(!served.root("second").exists());
    first.end().exits(0);
    second.end().exits(0);
    assert_eq!(fs::metadata(served.root("second")).unwrap().len(), 12 << 20);
}
