"""Back to the beginning."""

import http.client


def test_a_reset_forgets_everything(google):
    topic, sub = google.pair(push_config={"push_endpoint": "http://127.0.0.1:1/"})
    google.subscriber.create_snapshot(
        request={"name": google.path("snapshots"), "subscription": sub}
    )
    connection = http.client.HTTPConnection(google.address, timeout=20)
    connection.request("POST", "/reset")
    assert connection.getresponse().status == 200
    connection.close()
    project = {"project": f"projects/{google.project}"}
    assert list(google.publisher.list_topics(request=project)) == []
    assert list(google.subscriber.list_subscriptions(request=project)) == []
    assert list(google.subscriber.list_snapshots(request=project)) == []
    google.publisher.create_topic(request={"name": topic, "labels": {"new": "1"}})
    google.subscriber.create_subscription(request={"name": sub, "topic": topic})
    google.publish(topic, "x")
    assert len(google.pull(sub)) == 1
