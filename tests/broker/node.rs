//! The private node that everything else here runs on.

use delayline::{
    amqp::Session,
    node::{NodeOptions, PrivateNode},
};

#[test]
fn a_node_keeps_its_files_where_it_is_told_to_and_takes_them_along() {
    let place = tempfile::tempdir().unwrap();
    let options = NodeOptions { place: Some(place.path().to_owned()), ..NodeOptions::default() };
    let node = PrivateNode::start(options).unwrap();
    Session::open(&node.settings().build().unwrap().broker).unwrap();
    let stored = node.directory().join("data");
    assert!(stored.read_dir().unwrap().next().is_some(), "nothing is stored under {}", stored.display());
    assert_eq!(node.directory().parent(), Some(place.path()));
    drop(node);
    assert_eq!(place.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_place_that_is_not_there_is_named() {
    let options = NodeOptions { place: Some("/no/such/place".into()), ..NodeOptions::default() };
    let error = PrivateNode::start(options).unwrap_err().to_string();
    assert!(error.contains("/no/such/place"), "{error}");
}
