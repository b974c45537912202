"""What a person looks at: the browser viewer, replay pages, videos, reports."""
