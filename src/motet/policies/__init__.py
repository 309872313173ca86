"""Who may sit in a seat: policies as users name them, saved, joint, in teams, scripted."""
