"""The retention audit: sends needles through a service, then searches every place where content could have stayed."""
